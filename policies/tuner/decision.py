"""One decision: the candidates of every phase, and the proposal that is made of the chosen one.

While nothing runs, the fit phase proposes the fastest recipe that confidently fits. Then one ranking over the whole
legal space is split by phase: the study's sampler picks the best of a phase's candidates, unless another phase's best
scores twice as high. A proposal is reduced to the smallest change with the same gain and named after the fixes that it
consists of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, takewhile

from policies.candidates.candidate import Candidate, Group, PredictionSource, best_first, in_order, preferred
from policies.candidates.fitting import FitSet, cheapest_fit
from policies.candidates.knowledge import Knowledge
from policies.candidates.layouts import all_that_fit, layouts
from policies.candidates.neighbours import Move, moves, moves_of_fixes, moves_that_fit, neighbours, pairs
from policies.candidates.unmodelled import claimed_fixes, settings
from policies.constants import constant
from policies.noise import throughput
from policies.reason import Reason, ReasonKind
from policies.search.acquisition import CONFIDENT_FIT_PROBABILITY
from policies.search.sampler import SURROGATE, UNKNOWN_EXCESS, TrialResult, ask, measured
from policies.search.space import Point, Space
from policies.trial import Phase, Prediction, Proposal, Trial
from policies.tuner.decomposition import decompose, fix_of, rescored, smallest
from policies.tuner.explain import Explain
from policies.tuner.phases import phase_of
from policies.tuner.sizing import Sizes
from policies.tuner.turns import PHASE_SHARE, in_turn
from trainer.estimate.candidates import tabulate
from trainer.estimate.plan.search import Search

MIN_EXPECTED_IMPROVEMENT = constant("min_expected_improvement")
HOPELESS_FIT_PROBABILITY = constant("hopeless_fit_probability")
CANDIDATES_PER_PHASE = int(constant("candidates_per_phase"))
FIRST_CANDIDATES = int(constant("first_candidates"))


class Decision:
    """One decision: its input (`knowledge`), and the candidates of every phase, computed on first use."""

    def __init__(
        self,
        *,
        key: tuple[object, ...],
        knowledge: Knowledge,
        legal: Search,
        space: Space,
        explain: Explain,
        single_moves: list[Move] | None,
        sizes: Sizes | None = None,
    ) -> None:
        self.key, self.knowledge, self._legal, self._space = key, knowledge, legal, space
        self._explain, self._single_moves, self._sizes = explain, single_moves, sizes
        self._near: list[Move] | None = None
        self._groups: list[Group] | None = None
        self._ranked: list[Candidate] | None = None

    @property
    def near(self) -> list[Move]:
        """Returns the single moves around the incumbent, those of fixes included."""
        if self._near is None:
            by_digest: dict[str, Move] = {}
            for move in (*self.single_moves, *moves_of_fixes(self.knowledge.situation)):
                by_digest.setdefault(move.recipe.digest(), move)
            self._near = list(by_digest.values())
        return self._near

    @property
    def single_moves(self) -> list[Move]:
        """Returns the moves that depend only on the incumbent's recipe, not on its trace."""
        if self._single_moves is None:
            self._single_moves = list(moves(self.knowledge.recipe))
        return self._single_moves

    def first(self) -> Proposal | None:
        """Returns the fastest recipe that confidently fits, while nothing runs; None if nothing has a chance to fit.

        Returns a set of fixes instead if no recipe of the legal space confidently fits and the set has a higher
        P(fits).
        """
        knowledge = self.knowledge
        found = list(islice(self._candidates(), FIRST_CANDIDATES))
        highest_fit = found[0].fits_probability if found else 0.0
        if highest_fit < CONFIDENT_FIT_PROBABILITY:  # `plan` does not vary the fixes of last resort
            fit_set = cheapest_fit(knowledge)
            if fit_set is not None and fit_set.fits_probability > max(highest_fit, HOPELESS_FIT_PROBABILITY):
                return self.fitting(fit_set, ReasonKind.FITS_CHEAPEST)
            if highest_fit < HOPELESS_FIT_PROBABILITY:
                return None
        chosen = smallest(preferred(found) if self._sizes is None else self._sizes.first(found), knowledge)
        return self._proposal(Phase.FIT, chosen, self._explain.first(chosen))

    def fitting(self, found: FitSet, kind: ReasonKind) -> Proposal:
        """Returns a set of fixes as a proposal."""
        candidate = Candidate(
            recipe=found.recipe,
            log_step=0.0,
            deviation=0.0,
            noise=0.0,
            log_gain=None,
            fits_probability=found.fits_probability,
            expected_improvement=0.0,
            score=0.0,
        )
        return self._proposal(Phase.FIT, candidate, self._explain.fit_set(found, kind))

    def next(self, phase: Phase, seed: int) -> Proposal | None:
        """Returns the proposal that the study's sampler picks for a phase; None if nothing is worth a burst."""
        knowledge = self.knowledge
        sampler = knowledge.given.tune.sampler
        if sampler != SURROGATE and self._out_of_patience(phase):
            return None
        options = self._worthwhile(phase) if sampler == SURROGATE else []
        chosen = ask(
            self._space,
            knowledge.trials,
            options,
            lambda point: self._nearest(phase, point),
            pick=self._pick,
            sampler=sampler,
            seed=seed + len(knowledge.trials),
            result_of=None if self._sizes is None else self._result_of,
        )
        if chosen is None:
            return None
        reduced = smallest(chosen, knowledge) if sampler == SURROGATE else chosen  # a sampled point is tried as it is
        runner_up = next((each for each in self.ranked if each is not chosen), None)
        return self._proposal(phase, reduced, self._explain.next(reduced, runner_up, sampler))

    def _pick(self, found: Sequence[Candidate]) -> Candidate:
        """Returns the best candidate; where bursts may be smaller, the one with the highest score per GPU-hour."""
        return preferred(found) if self._sizes is None else max(found, key=lambda each: each.score)

    def _result_of(self, trial: Trial) -> TrialResult:
        """Returns the result of a trial given to Optuna: predicted at full size if its bursts were smaller."""
        if trial.fidelity is None or throughput(trial) is None:
            return measured(trial)
        surrogate, table, recipe = self.knowledge.surrogate, tabulate([trial.recipe]), trial.recipe
        tokens = recipe.training.tokens_per_step / recipe.world_size
        need, limit = float(surrogate.memory.needs(table)[0][0]), surrogate.memory.limit_gib
        rate = tokens / math.exp(float(surrogate.time.predict(table)[0][0]))
        return TrialResult(rate=rate, excess=need / limit - 1 if limit else -UNKNOWN_EXCESS)

    def why_stopped(self) -> Reason:
        """Returns why the search ends: nothing fits, nothing is left to try, or nothing is worth a burst."""
        if not self.knowledge.runs:
            return self._explain.nothing_runs()
        return self._explain.nothing_left(self.ranked)

    @property
    def ranked(self) -> list[Candidate]:
        """Returns the candidates of all phases that may be proposed, the highest score first.

        The surrogate's best is in it however low its score is.
        """
        if self._ranked is None:
            found = self._candidates()
            first = next(found, None)
            least = max(MIN_EXPECTED_IMPROVEMENT, PHASE_SHARE * first.score if first else 0.0)
            close: Iterator[Candidate] = takewhile(
                lambda each: each.score >= least, islice(found, CANDIDATES_PER_PHASE)
            )
            extra = [*claimed_fixes(self.knowledge, Phase.PROFILE), *self._settings()]
            if self._sizes is not None and first is not None:
                close = chain([first], takewhile(lambda each: each.score >= MIN_EXPECTED_IMPROVEMENT, found))
                return self._per_gpu_hour(close, extra)
            self._ranked = sorted([*([first, *close] if first else []), *extra], key=lambda each: -each.score)
        return self._ranked

    def _per_gpu_hour(self, found: Iterable[Candidate], extra: Iterable[Candidate]) -> list[Candidate]:
        """Returns candidates ranked by the score of their bursts per GPU-hour."""
        assert self._sizes is not None
        both = [*self._sizes.ranked(found, self.knowledge), *self._sizes.ranked(extra, self.knowledge)]
        self._ranked = sorted(both, key=lambda each: -each.score)
        return self._ranked

    def _worthwhile(self, phase: Phase) -> list[Candidate]:
        """Returns a phase's candidates that are worth a burst and may be proposed now (`in_turn`); published settings
        only if there are no others. In retune also pairs of moves, if no single move is worth a burst."""
        worthwhile = [each for each in self.ranked if _is_worth_a_burst(each)]
        if phase is Phase.RETUNE and not any(each.source is PredictionSource.SURROGATE for each in worthwhile):
            worthwhile = [*self._pairs(), *worthwhile]
        found = [each for each in in_turn(worthwhile, noise=self.knowledge.noise) if self._phase(each) is phase]
        modelled = [each for each in found if each.source is not PredictionSource.PUBLISHED]
        return modelled or found

    def _phase(self, candidate: Candidate) -> Phase:
        if candidate.source is PredictionSource.TRACE:
            return Phase.PROFILE
        if candidate.source is PredictionSource.PUBLISHED or candidate.paired:
            return Phase.RETUNE
        return phase_of(self.knowledge, candidate.recipe)

    def _candidates(self) -> Iterator[Candidate]:
        """Yields the candidates that the surrogate can predict and that have enough cores, the best first."""
        knowledge = self.knowledge
        found = best_first(self._modelled, knowledge.avoid, runs=knowledge.runs)
        return (each for each in found if knowledge.has_cores(each.recipe))

    def _nearest(self, phase: Phase, point: Point) -> Iterator[Candidate]:
        """Yields a phase's candidates that should fit, those nearest to a point first."""
        knowledge = self.knowledge
        groups = [
            all_that_fit(
                self._legal,
                knowledge.given,
                knowledge.recipe,
                knowledge.surrogate,
                knowledge.avoid,
                min_fit=knowledge.min_fit,
            ),
            moves_that_fit(self.near, knowledge.surrogate, min_fit=knowledge.min_fit),
        ]
        keys = [self._space.distance(group.table, point) for group in groups]
        found = in_order(groups, keys, knowledge.avoid, runs=True)
        allowed = (
            each for each in found if knowledge.has_cores(each.recipe) and phase_of(knowledge, each.recipe) is phase
        )
        return (rescored(each, each.recipe, knowledge) for each in allowed)

    @property
    def _modelled(self) -> list[Group]:
        if self._groups is None:
            knowledge = self.knowledge
            incumbent = knowledge.recipe if knowledge.runs else None
            legal = layouts(
                self._legal, knowledge.given, incumbent, knowledge.surrogate, knowledge.avoid, min_fit=knowledge.min_fit
            )
            around = (
                neighbours(knowledge.recipe, self.near, knowledge.surrogate, knowledge.avoid, min_fit=knowledge.min_fit)
                if incumbent
                else None
            )
            self._groups = [legal, *([around] if around else [])]
        return self._groups

    def _pairs(self) -> list[Candidate]:
        knowledge = self.knowledge
        group = pairs(knowledge.recipe, self.near, knowledge.surrogate, knowledge.avoid, min_fit=knowledge.min_fit)
        found = best_first([group], knowledge.avoid, runs=True) if group else iter(())
        return [
            replace(each, paired=True) for each in found if _is_worth_a_burst(each) and knowledge.has_cores(each.recipe)
        ]

    def _settings(self) -> list[Candidate]:
        """Returns single settings by published effects; [] once `tune.patience` of them in a row brought no gain."""
        knowledge = self.knowledge
        unsuccessful = knowledge.avoid.without_gain(lambda trial: trial.proposal.predicted.published)
        return settings(knowledge, self.near) if unsuccessful < knowledge.recipe.tune.patience else []

    def _out_of_patience(self, phase: Phase) -> bool:
        """Returns true if `tune.patience` proposals of the phase in a row brought no gain.

        This ends a phase whose sampler does not estimate expected improvement.
        """
        unsuccessful = self.knowledge.avoid.without_gain(lambda trial: trial.proposal.phase is phase)
        return unsuccessful >= self.knowledge.recipe.tune.patience

    def _proposal(self, phase: Phase, chosen: Candidate, reason: Reason) -> Proposal:
        parts = decompose(chosen, self.knowledge)
        return Proposal(
            recipe=chosen.recipe,
            parent=self.knowledge.incumbent.number,
            phase=phase,
            fix=fix_of(parts.shares),
            reason=reason,
            fixes=parts.shares,
            interaction=parts.interaction,
            predicted=self._prediction(chosen),
        )

    def _prediction(self, chosen: Candidate) -> Prediction:
        peak_gib = float(self.knowledge.surrogate.memory.peaks(tabulate([chosen.recipe]))[0])
        if chosen.log_gain is None:
            return Prediction(peak_gib=peak_gib, fits_probability=chosen.fits_probability)
        gain, low, high, bound = chosen.prediction
        return Prediction(
            gain=gain,
            gain_low=low,
            gain_high=high,
            gain_bound=bound,
            peak_gib=peak_gib,
            fits_probability=chosen.fits_probability,
            published=chosen.source is PredictionSource.PUBLISHED,
        )


def _is_worth_a_burst(candidate: Candidate) -> bool:
    return candidate.expected_improvement >= MIN_EXPECTED_IMPROVEMENT
