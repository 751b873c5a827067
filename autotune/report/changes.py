"""Sections of what was changed: the accepted path, the tuned recipe, and every idea that was not kept."""

from __future__ import annotations

from autotune.quantities import NONE, changes_text, knob_value
from autotune.report.document import numerics_label, numerics_of
from autotune.report.material import Material, Section, Table, fix_name_title, fix_title, status_words
from autotune.report.path import gain_with_interval, obtained, obtained_text, predicted_text
from policies.policy import Policy
from trainer.recipe import Recipe


def path(material: Material) -> Section | None:
    rows = tuple(
        (
            str(step.number),
            str(step.trial.number),
            step.trial.proposal.phase.value,
            f"{step.wall}: {'; '.join(step.wall.evidence)} [{step.wall.seen_in}]" if step.wall else "as given",
            fix_title(step.trial),
            changes_text(step.trial.changes) if step.parent else NONE,
            step.trial.proposal.because,
            predicted_text(step.trial) if step.parent else NONE,
            obtained_text(step, material.unit),
            step.trial.verdict_because,
        )
        for step in material.path
    )
    said = (
        "Every kept change with the wall it was for. A predicted gain is the fix's claim on the wall's recoverable "
        "time R; its bound is T/(T−R)−1. Obtained is over the parent, with the 95 % interval.",
    )
    columns = (
        "step", "trial", "phase", "wall found, evidence", "fix", "change", "because", "predicted", "obtained", "judged",
    )  # fmt: skip
    return Section(
        key="path", title="The accepted path", paragraphs=said, table=Table(columns=columns, rows=rows, numbers=(0, 1))
    )


def recipe(material: Material) -> Section | None:
    best = material.history.best
    if best is None:
        return None
    changed = material.trials[0].recipe.diff(best.recipe)
    rows = tuple(
        (knob, knob_value(a), knob_value(b), numerics_label(knob), _set_by(knob, material))
        for knob, (a, b) in changed.items()
    )
    if not rows:
        return Section(key="recipe", title="The tuned recipe", paragraphs=("It is the recipe as given.",))
    said = (f"Base → tuned (trial {best.number}), whole: {numerics_of(changed)}. The recipe is in tuned_recipe.yaml.",)
    columns = ("knob", "base", "tuned", "numerics", "set by")
    return Section(key="recipe", title="The tuned recipe", paragraphs=said, table=Table(columns=columns, rows=rows))


def rejected(material: Material) -> Section | None:
    rows = tuple(
        (
            str(trial.number),
            trial.proposal.phase.value,
            fix_title(trial),
            changes_text(trial.changes),
            trial.proposal.because,
            predicted_text(trial),
            gain_with_interval(obtained(trial, material.trial(trial.proposal.parent))) or NONE,
            status_words(trial),
            trial.verdict_because,
        )
        for trial in material.rejected
    )
    columns = ("trial", "phase", "fix", "change", "because", "predicted", "obtained", "verdict", "reason")
    said = ("Tried and not kept. A trial without a burst was refused by the rules before it cost one.",)
    table = Table(columns=columns, rows=rows, numbers=(0,))
    return Section(key="rejected", title="Tried and rejected", paragraphs=said, table=table) if rows else None


def not_tried(material: Material) -> Section | None:
    study, best = material.history.study, material.history.best
    if study is None or best is None:
        return None
    policy = Policy(Recipe.model_validate(study.recipe), study.seed)
    ideas = policy.rejected_ideas(best, material.trials)
    rows = tuple((fix_name_title(idea.fix), idea.phase.value, idea.why_not) for idea in ideas)
    said = (f"Fixes considered for the best recipe (trial {best.number}) and not worth a burst, with the reason.",)
    table = Table(columns=("fix", "phase", "why not"), rows=rows)
    return Section(key="not-tried", title="Considered and not tried", paragraphs=said, table=table) if rows else None


def _set_by(knob: str, material: Material) -> str:
    """The accepted trial that last moved a knob on the path."""
    last = next((step.trial for step in reversed(material.path) if knob in step.trial.changes), None)
    return f"trial {last.number}, {fix_title(last)}" if last else NONE
