"""Sections on the changes: the accepted path, the tuned recipe, rejected trials, and fixes that were not tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.looks.acting import acting_changes
from autotune.looks.fix_names import name_title, shares_text, titles_text
from autotune.looks.quantities import NONE, changes_text, gain_interval, percent
from autotune.looks.reasons import proposal_text, sentence, verdict_text
from autotune.looks.tables import Table
from autotune.report.bars import pair_bars
from autotune.report.before_after import fixes_table, parts_table, walls_table
from autotune.report.material import Material, Record, Section, status_words
from autotune.report.path import PathStep, gain_with_interval, obtained_text, predicted_text
from autotune.report.walls import burst_folders
from autotune.tuning.speedup import obtained
from policies.changes.legality import numerics_of
from policies.reason import ReasonKind
from policies.trial import Trial
from policies.tuner.ideas import Idea
from trainer.recipe.knobs import KNOBS
from trainer.values import knob_value


def path(material: Material) -> Section | None:
    paragraphs = (
        "Every accepted change. Predicted: the gain before the burst, with its 90 % interval; without an interval, the "
        "fix's claim on the wall's recoverable time R, bounded by T/(T−R)−1. Obtained: the gain over the parent, from "
        "all bursts of both, with its 95 % interval. Verdict: the figures at the time of the decision.",
        "Fixes: a share is the predicted gain that is lost when the fix is taken out of the change; the interaction is "
        "the gain that no fix has by itself. Walls: the time each could give back at most; they overlap and do not add "
        "up. Parts: the calibrated estimate at the time of the proposal, next to the traced step of one rank, the same "
        "before and after.",
    )
    records = tuple(_step(step, material.unit) for step in material.path)
    return Section(key="path", title="The accepted path", paragraphs=paragraphs, records=records)


def recipe(material: Material) -> Section | None:
    best = material.history.best
    if best is None:
        return None
    changed = acting_changes(best.recipe, material.trials[0].recipe.diff(best.recipe))
    rows = tuple(
        (knob, knob_value(a), knob_value(b), KNOBS[knob].numerics, _set_by(knob, material))
        for knob, (a, b) in changed.items()
    )
    if not rows:
        return Section(key="recipe", title="The tuned recipe", paragraphs=("It is the base recipe.",))
    paragraphs = (f"Base → tuned (trial {best.number}): {numerics_of(changed)}. The recipe is in tuned_recipe.yaml.",)
    columns = ("knob", "base", "tuned", "numerics", "set by")
    return Section(
        key="recipe", title="The tuned recipe", paragraphs=paragraphs, table=Table(columns=columns, rows=rows)
    )


def rejected(material: Material) -> Section | None:
    if not material.rejected:
        return None
    paragraphs = (
        "A trial without a burst was refused by the rules before it cost one. Verdict: the comparison that decided, of "
        "the bursts it names, with the best recipe of that time. Gain of all bursts: the medians of all bursts of the "
        "trial and of its parent, later repeats included. The two may differ.",
    )
    records = tuple(_rejected(trial, material) for trial in material.rejected)
    return Section(key="rejected", title="Tried and rejected", paragraphs=paragraphs, records=records)


def not_tried(material: Material) -> Section | None:
    best = material.history.best
    if best is None:
        return None
    rows = tuple(_idea_rows(sorted(material.ideas, key=_idea_order)))
    paragraphs = (
        f"Fixes considered as changes of the best recipe (trial {best.number}) when the study ended, with the "
        "predictions at that time: the largest predicted gain first, then those without a predicted effect, last those "
        "that are not legal or do not apply here.",
    )
    columns = ("fix", "phase", "predicted gain (90 %)", "P(fits)", "why not")
    table = Table(columns=columns, rows=rows, numbers=(2, 3))
    return (
        Section(key="not-tried", title="Considered and not tried", paragraphs=paragraphs, table=table) if rows else None
    )


def _idea_rows(ideas: Sequence[Idea]) -> Iterator[tuple[str, ...]]:
    """Yields one row per idea; ideas without a prediction that have the same reason share one."""
    same_reason: dict[str, list[Idea]] = {}
    for idea in ideas:
        if idea.gain is None:
            same_reason.setdefault(sentence(idea.reason), []).append(idea)
        else:
            yield name_title(idea.fix), idea.phase.value, *_idea_figures(idea), sentence(idea.reason)
    for why, same in same_reason.items():
        phases = dict.fromkeys(idea.phase.value for idea in same)
        yield ", ".join(name_title(idea.fix) for idea in same), ", ".join(phases), NONE, NONE, why


def _idea_order(idea: Idea) -> tuple[int, float, str]:
    """Returns a sort key: ideas with a prediction by gain, then those without evidence, illegal ones, inapplicable
    ones."""
    last = {ReasonKind.NO_EVIDENCE: 1, ReasonKind.ILLEGAL: 2, ReasonKind.NOT_APPLICABLE: 3}
    return last.get(idea.reason.kind, 0), -(idea.gain or 0.0), name_title(idea.fix)


def _idea_figures(idea: Idea) -> tuple[str, str]:
    if idea.gain is None or idea.gain_low is None or idea.gain_high is None or idea.fits_probability is None:
        return NONE, NONE
    return gain_interval(idea.gain, idea.gain_low, idea.gain_high), percent(idea.fits_probability, 0)


def _step(step: PathStep, unit: str) -> Record:
    trial, wall = step.trial, step.wall
    if wall is None:
        given = (
            ("result", obtained_text(step, unit)),
            ("verdict", verdict_text(trial)),
            ("data", burst_folders(trial)),
        )
        return Record(heading=f"{step.number} · base recipe · trial {trial.number}", facts=given)
    facts = (
        ("predicted", predicted_text(trial)),
        ("obtained", obtained_text(step, unit)),
        ("wall found", str(wall)),
        ("evidence", "; ".join(wall.evidence)),
        ("seen in", wall.seen_in),
        ("reason", proposal_text(trial.proposal)),
        ("verdict", verdict_text(trial)),
        ("data", burst_folders(trial)),
    )
    heading = f"{step.number} · {titles_text(trial)} · {trial.proposal.phase.value}, trial {trial.number}"
    found = (fixes_table(trial), walls_table(step), parts_table(step))
    tables = tuple(table for table in found if table is not None)
    return Record(heading=heading, facts=facts, tables=tables, bars=pair_bars(step))


def _rejected(trial: Trial, material: Material) -> Record:
    parent = material.trial(trial.proposal.parent)
    facts = (
        ("verdict", verdict_text(trial)),
        ("fixes", shares_text(trial.proposal)),
        ("change", changes_text(acting_changes(trial.recipe, trial.changes))),
        ("reason", proposal_text(trial.proposal)),
        ("predicted", predicted_text(trial)),
        ("gain of all bursts", _over_parent(trial, parent, material)),
        ("data", burst_folders(trial)),
    )
    heading = f"trial {trial.number} · {titles_text(trial)} · {trial.proposal.phase.value} · {status_words(trial)}"
    return Record(heading=heading, facts=facts)


def _over_parent(trial: Trial, parent: Trial | None, material: Material) -> str:
    """Returns the measured gain over the parent, such as `+4.0 % (+1.1 to +7.0 %) over trial 3 in wall-clock time`; ""
    if it was not measured."""
    gained = obtained(trial, parent, material.trials)
    if gained is None or parent is None:
        return ""
    return f"{gain_with_interval(gained)} over trial {parent.number} in wall-clock time"


def _set_by(knob: str, material: Material) -> str:
    """Returns `trial 4, TITLES OF ITS FIXES` for the accepted trial that last changed a knob on the path."""
    last = next((step.trial for step in reversed(material.path) if knob in step.trial.changes), None)
    return f"trial {last.number}, {titles_text(last)}" if last else NONE
