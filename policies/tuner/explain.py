"""Makes the reasons of proposals and of a search's end, as figures: the evidence used and the surrogate's
predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.candidates.candidate import Candidate, PredictionSource
from policies.candidates.fitting import FitSet
from policies.candidates.knowledge import Knowledge
from policies.constants import constant
from policies.reason import Reason, ReasonKind
from policies.search.sampler import SURROGATE
from policies.situation import Situation
from policies.surrogate.factors import move_constants
from policies.surrogate.lesson import Lesson
from policies.trial import Z_90, Phase
from trainer.estimate.candidates import tabulate
from trainer.estimate.plan.feasible import MAX_GPUS, fewest_nodes
from trainer.estimate.time.estimate import time_of
from trainer.estimate.time.parts import STEP_PARTS

Figures = dict[str, Any]


class Explain:
    """Makes the reasons of one decision."""

    def __init__(self, knowledge: Knowledge, lessons: Sequence[Lesson]) -> None:
        self._knowledge, self._lessons = knowledge, lessons

    def first(self, chosen: Candidate) -> Reason:
        """Explains the first recipe that is predicted to fit."""
        confident = chosen.fits_probability >= constant("confident_fit_probability")
        return Reason(
            kind=ReasonKind.FITS_FASTEST if confident else ReasonKind.FITS_LIKELIEST,
            figures={
                "failed": self._failed(),
                "step_s": math.exp(chosen.log_step),
                "spread": Z_90 * chosen.deviation,
                "fits_probability": chosen.fits_probability,
                "learned": self._learned(),
            },
        )

    def fit_set(self, found: FitSet, kind: ReasonKind) -> Reason:
        """Explains a set of fixes that makes a recipe fit."""
        peak_gib = float(self._knowledge.surrogate.memory.peaks(tabulate([found.recipe]))[0])
        return Reason(
            kind=kind,
            figures={
                "failed": self._failed(),
                "fixes": [fix.name for fix in found.fixes],
                "fits_probability": found.fits_probability,
                "peak_gib": peak_gib,
                "limit_gib": self._knowledge.surrogate.memory.limit_gib,
            },
        )

    def next(self, chosen: Candidate, runner_up: Candidate | None, sampler: str) -> Reason:
        """Explains the candidate that the sampler picked."""
        if chosen.claimed is not None:
            return self._claimed(chosen)
        if chosen.published is not None:
            return self._published(chosen)
        gain, low, high = chosen.gains
        figures = {
            "wall": leading_wall(self._knowledge.situation),
            "parts": self._parts(chosen),
            "gain": gain,
            "gain_low": low,
            "gain_high": high,
            "fits_probability": chosen.fits_probability,
            "learned": self._learned(),
        }
        if sampler != SURROGATE:
            return Reason(kind=ReasonKind.SAMPLED, figures=figures | {"sampler": sampler})
        if runner_up is not None:
            behind = math.expm1(chosen.expected_improvement) - math.expm1(runner_up.score)
            figures["runner_up"] = max(behind, 0.0)
        return Reason(kind=ReasonKind.EXPECTED_IMPROVEMENT, figures=figures)

    def nothing_runs(self) -> Reason:
        """Explains the end of a study in which nothing ran."""
        knowledge = self._knowledge
        if not knowledge.needs_room:
            failure = knowledge.situation.failure
            ran = (outcome for trial in knowledge.trials for outcome in trial.outcomes if outcome.failure == failure)
            outcome = next(ran, None)
            figures = {
                "kind": failure.kind.value if failure else None,
                "phase": failure.phase.value if failure and failure.phase else None,
                "versions": outcome.versions if outcome else {},
            }
            return Reason(kind=ReasonKind.FAILED, figures=figures)
        tried = sum(trial.proposal.phase is Phase.FIT for trial in knowledge.trials)
        nodes = fewest_nodes(knowledge.given, above=knowledge.given.cluster.nodes)
        return Reason(
            kind=ReasonKind.NOTHING_FITS, figures={"tried": tried, "fewest_nodes": nodes, "most_gpus": MAX_GPUS}
        )

    def nothing_left(self, ranked: Sequence[Candidate]) -> Reason:
        """Explains why no further burst is worth its cost."""
        knowledge, limit = self._knowledge, constant("min_expected_improvement")
        tune = knowledge.given.tune
        unsuccessful = knowledge.avoid.without_gain(lambda trial: trial.proposal.predicted.published)
        figures: Figures = {"patience": tune.patience if unsuccessful >= tune.patience else None}
        best = max(
            (each for each in ranked if each.source is PredictionSource.SURROGATE), key=_improvement, default=None
        )
        if best is None:
            noise = math.expm1(Z_90 * knowledge.surrogate.time.noise)
            return Reason(kind=ReasonKind.NOTHING_LEFT, figures=figures | {"noise": noise})
        figures["expected_improvement"] = math.expm1(best.expected_improvement)
        if tune.sampler != SURROGATE:
            return Reason(kind=ReasonKind.SAMPLER_EXHAUSTED, figures=figures | {"sampler": tune.sampler})
        return Reason(kind=ReasonKind.NOT_WORTH_A_BURST, figures=figures | {"limit": limit})

    def _claimed(self, chosen: Candidate) -> Reason:
        assert chosen.claimed is not None
        assert chosen.log_gain is not None
        claimed, situation = chosen.claimed, self._knowledge.situation
        names = [part for claim in claimed.fix.claims if claim.wall is claimed.wall for part in claim.parts]
        sizes = {part: situation.recoverable_us(claimed.wall, (part,)) for part in dict.fromkeys(names)}
        shown = sorted((part for part in sizes if sizes[part] > 0), key=lambda part: -sizes[part])
        whole = {"wall": claimed.wall.value, "lost_us": situation.recoverable_us(claimed.wall)}
        return Reason(
            kind=ReasonKind.CLAIMED,
            figures={
                "wall": whole | {"step_us": situation.step_us},
                "fix": claimed.fix.name,
                "parts": [{"part": part, "lost_us": sizes[part]} for part in shown],
                "claimed_us": claimed.claimed_us,
                "step_us": situation.step_us,
                "gain": math.expm1(chosen.log_gain),
                "gain_bound": claimed.bound,
                "fits_probability": chosen.fits_probability,
            },
        )

    def _published(self, chosen: Candidate) -> Reason:
        assert chosen.published is not None
        found = chosen.published
        return Reason(
            kind=ReasonKind.PUBLISHED,
            figures={
                "wall": leading_wall(self._knowledge.situation),
                "knob": found.knob.name,
                "walls": list(found.knob.walls),
                "gain": math.expm1(found.effect.gain),
                "spread": Z_90 * found.effect.spread,
                "evidence": found.effect.evidence,
                "source": found.effect.source,
                "gain_bound": math.expm1(found.bound) if math.isfinite(found.bound) else None,
            },
        )

    def _parts(self, chosen: Candidate) -> dict[str, list[float]]:
        """Returns {part: [incumbent's seconds, candidate's seconds]} by the closed form at the learned constants,
        scaled so that the parts add up to the predicted steps."""
        time, table = self._knowledge.surrogate.time, tabulate([self._knowledge.recipe, chosen.recipe])
        found = time_of(table, constants=move_constants(time.theta))
        scale = np.exp(time.predict(table)[0]) / found.step_s
        parts = {name: found.by_part[name] * scale for name in STEP_PARTS}
        return {name: [float(was), float(now)] for name, (was, now) in parts.items() if max(was, now) > 0}

    def _failed(self) -> Figures:
        situation, failure = self._knowledge.situation, self._knowledge.situation.failure
        return {
            "trial": self._knowledge.incumbent.number,
            "kind": failure.kind.value if failure else None,
            "phase": failure.phase.value if failure and failure.phase else None,
            "rank": failure.rank if failure else None,
            "limit_gib": situation.limit_gib,
        }

    def _learned(self) -> Figures:
        measured = self._knowledge.surrogate.time.measured
        return {
            "trials": len(measured),
            "traced": sum(bool(each.ranks) for each in measured),
            "lessons": [{"study": lesson.study, "trials": lesson.trials} for lesson in self._lessons],
        }


def leading_wall(situation: Situation) -> Figures | None:
    """Returns the wall that could give back most, or a cause of the loss that is not a wall; None without a trace."""
    diagnosis = situation.analysis.diagnosis if situation.analysis else None
    if diagnosis is not None and diagnosis.cause is not None and diagnosis.cause.lost_us > 0:
        cause = diagnosis.cause
        named = {"cause": cause.name, "headline": cause.headline}
        return named | {"lost_us": cause.lost_us, "step_us": situation.step_us}
    findings = diagnosis.walls if diagnosis else []
    if not findings:
        return None
    first = max(findings, key=lambda finding: finding.recoverable_us)
    return {"wall": first.wall.value, "lost_us": first.recoverable_us, "step_us": situation.step_us}


def _improvement(candidate: Candidate) -> float:
    return candidate.expected_improvement
