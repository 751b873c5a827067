"""The summary of a study in sentences with numbers: what was wrong, what was changed, the gain, what is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from analyzers.diagnosis import Wall
from autotune.looks.acting import acting_changes
from autotune.looks.quantities import (
    counted,
    duration,
    first_changes,
    gib,
    interval,
    speedup_text,
    tokens_per_s,
)
from autotune.looks.reasons import divergence_text, end_text
from autotune.looks.recipes import fidelity_words
from autotune.report.document import Document, Measured, measured
from autotune.report.walls import wall_of, walls_met, where_it_failed
from autotune.tuning.events import EndStatus
from autotune.tuning.history import History
from autotune.tuning.lines import NOT_AT_FULL_SIZE, best_speedup, bursts_behind
from autotune.tuning.losses import disagreement
from policies.trial import Status, Trial

ENDED: dict[EndStatus, str] = {
    "converged": "converged",
    "budget": "stopped by the budget",
    "interrupted": "interrupted, can be resumed",
    "infeasible": "found no recipe that runs",
}


@dataclass(frozen=True, kw_only=True)
class Story:
    """The summary in words. `figure`: the headline number; `sentences`: (question, answer) in reading order."""

    study: str
    where: str  # such as `simulated, not measured at full size` or `CPU`; empty for GPUs at full size
    figure: str
    figure_note: str
    ended: str
    sentences: tuple[tuple[str, str], ...]

    @property
    def headline(self) -> str:
        """Returns `cpu-moe: 1.83× (CPU)`."""
        return f"{self.study}: {self.figure}" + (f" ({self.where})" if self.where else "")


def story_of(history: History, document: Document) -> Story:
    """Returns the summary of a study, including one in which nothing ran."""
    unit = history.unit
    return Story(
        study=document.study,
        where=_where(history),
        figure=_figure(history, document),
        figure_note=_figure_note(history, document),
        ended=_ended(history, document),
        sentences=(
            *_warning(document),
            ("What was wrong", _what_was_wrong(history)),
            ("What was changed", _what_was_changed(history)),
            ("What it gave", _what_it_gave(history, document, unit)),
            ("What is left", _what_is_left(history)),
        ),
    )


def _where(history: History) -> str:
    kind = "simulated" if history.simulated else "CPU" if history.unit == "rank" else ""
    return ", ".join(filter(None, (kind, NOT_AT_FULL_SIZE if history.only_proxies else "")))


def _figure(history: History, document: Document) -> str:
    if document.speedup is not None:
        return speedup_text(document.speedup)
    return "nothing runs" if history.best is None else "no speed-up measured"


def _warning(document: Document) -> tuple[tuple[str, str], ...]:
    """Returns the first warning, if the journal disagrees with the bursts' files."""
    if not document.warnings:
        return ()
    first = document.warnings[0]
    warning = f"The journal disagrees with the bursts' own files, so these figures may be wrong: {first}."
    return (("Warning", warning),)


def _figure_note(history: History, document: Document) -> str:
    if history.best is not None and document.speedup is None:
        return "no two bursts of one size compare the best with the reference"
    if document.speedup is None or history.reference is None:
        return "no trial gave step times"
    low, high = document.speedup_ci or (None, None)
    given = history.reference.recipe.digest() == history.proposals[0][0].recipe.digest()
    what = "the base recipe" if given else "the smallest change that ran"
    size = f", both as a {fidelity_words(history.best.fidelity)}" if history.best and history.only_proxies else ""
    over = f"throughput over trial {history.reference.number}, {what}{size}"
    if document.best == document.base:
        return "; ".join(part for part in (f"{over}: nothing beat it", _provisional(history)) if part)
    gained = ", ".join(part for part in (over, interval(low, high), _behind(history)) if part)
    return "; ".join(part for part in (gained, _provisional(history)) if part)


def _behind(history: History) -> str:
    """Returns the number of bursts behind the speed-up, marked provisional if they are too few."""
    gained = best_speedup(history)
    if gained is None:
        return ""
    return f"provisional: {bursts_behind(gained)}" if gained.provisional else bursts_behind(gained)


def _provisional(history: History) -> str:
    """Returns `judged provisionally, before the verdict: trial 4 (accepted, 1 burst)`; empty if no trial is open."""
    open_trials = [
        f"trial {t.number} ({t.verdict}, {counted(len(t.bursts), 'burst')})" for t in history.trials if t.provisional
    ]
    return f"judged provisionally, before the verdict: {', '.join(open_trials)}" if open_trials else ""


def _ended(history: History, document: Document) -> str:
    why = f": {end_text(history.ended)}" if history.ended else ""
    return f"{ENDED[document.status]}{why}{_lost(history)}"


def _lost(history: History) -> str:
    """Returns the number of bursts that the machine lost, and their nodes."""
    if not history.lost:
        return ""
    nodes = Counter(lost.failure.node for lost in history.lost if lost.failure.node)
    named = ", ".join(f"{node} {times} times" if times > 1 else node for node, times in nodes.most_common())
    where = f" (node {named})" if named else ""
    to = "machine faults or kills" if any(lost.failure.killed for lost in history.lost) else "machine faults"
    return f", {counted(len(history.lost), 'burst')} lost to {to}{where} and rerun"


def _what_was_wrong(history: History) -> str:
    """Returns the failure of the base recipe, then the walls of the accepted recipes, each at its largest."""
    trials = history.trials
    if not trials:
        return "Nothing was measured."
    sentences = [_as_given(trials[0])] if trials[0].status is not Status.OK else []
    sentences += [f"{undecided}."] if (undecided := _no_wall(trials[0])) else []
    walls = walls_met([trial for trial in trials if trial.accepted])
    if walls:
        sentences.append("Largest walls seen during the study: " + "; ".join(walls) + ".")
    return " ".join(sentences) or "No trace named a wall."


def _no_wall(base: Trial) -> str:
    """Returns that no wall leads in the base recipe, with the reason; empty if one does, or if it was not traced."""
    diagnosis = base.analysis.diagnosis if base.analysis is not None else None
    if diagnosis is None or diagnosis.wall is not Wall.UNDETERMINED:
        return ""
    why = f" ({diagnosis.headline})" if diagnosis.cause is not None else ""
    return f"No wall leads in the base recipe{why}"


def _as_given(trial: Trial) -> str:
    failure = next((outcome.failure for outcome in trial.outcomes if outcome.failure), None)
    if failure is None:
        return "The base recipe gave no step times."
    if trial.status is Status.OOM:
        limit = next((outcome.limit_gib for outcome in trial.outcomes if outcome.limit_gib), None)
        where = where_it_failed(failure)
        limited = f" (limit {gib(limit)} per rank)" if limit else ""
        return f"The base recipe does not fit: out of memory {where}{limited}.".replace("  ", " ")
    return f"The base recipe does not run ({failure.kind}: {failure.evidence})."


def _what_was_changed(history: History) -> str:
    trials, best = history.trials, history.best
    if best is None:
        return "No recipe that was tried runs."
    changed = acting_changes(best.recipe, trials[0].recipe.diff(best.recipe))
    if not changed:
        return "Nothing: no change beat the base recipe."
    kept = sum(trial.accepted for trial in trials if trial.number != trials[0].number)
    return f"{first_changes(changed)}, in {counted(kept, 'accepted step')} out of {counted(len(trials), 'trial')}."


def _what_it_gave(history: History, document: Document, unit: str) -> str:
    base, best = history.reference, history.best
    before = measured(base) if base else None
    after = measured(best) if best else None
    if base is None or best is None or before is None or after is None:
        return "No recipe ran, so there is no throughput to compare."
    if base.number == best.number:
        return f"Trial {best.number} runs at {tokens_per_s(after.tokens_per_s_per_gpu, unit=unit)}; nothing beat it."
    low, high = document.speedup_ci or (None, None)
    rates = " → ".join(tokens_per_s(figures.tokens_per_s_per_gpu, unit=unit) for figures in (before, after))
    parts = [
        f"{speedup_text(document.speedup)} the throughput ({interval(low, high)}): {rates}",
        f"step time {duration(before.step_us.median)} → {duration(after.step_us.median)}",
        _memory(before, after),
        _losses(best, base),
    ]
    return "; ".join(part for part in parts if part) + "."


def _losses(best: Trial, base: Trial) -> str:
    """Returns whether the losses agree; empty if an engine reported none."""
    if not all(any(outcome.loss for outcome in trial.outcomes) for trial in (best, base)):
        return ""
    differing = disagreement(best, base)
    return f"the losses diverge: {divergence_text(differing)}" if differing else "the losses agree"


def _memory(before: Measured, after: Measured) -> str:
    if not before.peak_gib or not after.peak_gib:
        return ""
    return f"peak memory of the hottest rank {gib(max(before.peak_gib))} → {gib(max(after.peak_gib))}"


def _what_is_left(history: History) -> str:
    if history.best is None:
        return "Every trial failed; the reasons are below."
    wall = wall_of(history.best)
    if history.best.analysis is None:
        return "The best recipe left no trace, so its wall is not known."
    diagnosis = history.best.analysis.diagnosis
    if diagnosis.wall is Wall.UNDETERMINED:
        why = wall.evidence[0]
        led_to = f"{wall}. {why[:1].upper()}{why[1:]}" if diagnosis.cause is not None else why
        return f"No wall leads in the best recipe: {led_to}"
    return f"The largest wall of the best recipe: {wall}. {wall.evidence[0]}".rstrip()
