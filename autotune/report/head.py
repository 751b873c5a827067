"""The head of a report: the recipe, where and when it was tuned, cost and savings, and the command that exports the
result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.export.difference import WordChange, word_changes
from autotune.looks.acting import acting_changes
from autotune.looks.fix_names import titles_text
from autotune.looks.quantities import (
    counted,
    first_changes,
    gib,
    gpu_or_rank,
    interval,
    percent,
    significant,
    speedup_text,
)
from autotune.looks.recipes import model_words
from autotune.looks.tables import Table
from autotune.report.before_after import largest_changes
from autotune.report.document import Document
from autotune.report.feasible import feasible
from autotune.report.material import Material
from autotune.report.path import obtained_text
from autotune.tuning.history import History
from autotune.tuning.lines import NOT_AT_FULL_SIZE, cost_in_words
from autotune.tuning.study_status import span_words
from policies.search.acquisition import gain_interval
from trainer.estimate.candidates import tabulate
from trainer.estimate.memory.estimate import estimate_memory
from trainer.frameworks import framework_of
from trainer.recipe import Recipe
from trainer.recipe.framework_names import DEFAULT

SOFTWARE = ("megatron-core", "torch", "transformer-engine", "deep-ep", "nccl", "cuda")


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head's content.

    `facts`: (name, text); `changes`: each accepted change with the walls it changed; `flags`: the changes from the
    user's command to the tuned one; `export`: the command, empty if no recipe runs.
    """

    facts: tuple[tuple[str, str], ...]
    changes: Table | None
    export: str
    flags: tuple[WordChange, ...]


def head_of(material: Material) -> Head:
    history, document = material.history, material.document
    base = _base(history)
    if base is None:
        return Head(facts=(), changes=None, export="", flags=())
    best = history.best
    facts = (
        ("When", _when(history)),
        ("Model", model_words(base)),
        ("Ran on", ran_on(base)),
        ("Batch", _batch(base)),
        ("Software", _software(material)),
        ("Cost", _cost(history, document)),
        ("Full size", _at_full_size(material)),
        ("Saves", _saves(document, base)),
        ("Needs", _needed(material, base)),
    )
    return Head(
        facts=tuple(fact for fact in facts if fact[1]),
        changes=_changes(material),
        export=f"moe-autotune export . --to {_target(base)}" if best else "",
        flags=tuple(word_changes(base, best.recipe, bursts=material.bursts)) if best else (),
    )


def ran_on(recipe: Recipe) -> str:
    """Returns `16 × h100, 2 nodes of 8`; simulated and CPU ranks are marked."""
    cluster, count = recipe.cluster, recipe.world_size
    nodes = f", {counted(cluster.nodes, 'node')} of {count // cluster.nodes}"
    if recipe.burst.engine == "simulated":
        return f"{count} × {cluster.gpu_name}{nodes}, simulated: nothing was measured"
    if recipe.hardware.is_cpu:
        return f"{counted(count, 'CPU rank')}{nodes}: not comparable with GPUs"
    return f"{count} × {cluster.gpu_name}{nodes}"


def _base(history: History) -> Recipe | None:
    return Recipe.model_validate(history.study.recipe) if history.study else None


def _when(history: History) -> str:
    started = history.study.at if history.study else 0.0
    span = span_words(history.last_event_at - started)
    return f"{datetime.fromtimestamp(started, tz=UTC):%Y-%m-%d %H:%M} UTC, {span}"


def _batch(recipe: Recipe) -> str:
    training = recipe.training
    return f"{training.global_batch_size:,} of {training.seq_length:,} tokens, {training.precision}"


def _software(material: Material) -> str:
    """Returns the versions that the ranks reported, else those installed with the tuner."""
    outcomes = (outcome for trial in material.trials for outcome in trial.outcomes)
    ran = next((outcome for outcome in outcomes if outcome.versions), None)
    known = {**material.document.environment, **(ran.versions if ran else {})}
    versions = [f"{name} {known[name]}" for name in SOFTWARE if name in known]
    study = material.history.study
    return ", ".join([*versions, f"moe-autotune {study.version}"] if study else versions)


def _cost(history: History, document: Document) -> str:
    price = document.gpu_hour_price
    money = (
        f", {significant(price * history.gpu_hours)} at {price:g} per {history.unit}-hour" if price is not None else ""
    )
    return f"{cost_in_words(history)}{money}"


def _at_full_size(material: Material) -> str:
    """Returns the predicted speed-up of a best recipe that was measured only by proxies; empty for other studies."""
    history = material.history
    best, reference = history.best, history.reference
    # a fit takes a second, and the page is written at every burst
    surrogate = material.surrogate if history.only_proxies else None
    if best is None or surrogate is None:
        return ""
    fits = f"P(fits) {percent(float(surrogate.memory.fits(tabulate([best.recipe]))[0]), 0)}"
    if reference is None or reference.number == best.number:
        return f"{NOT_AT_FULL_SIZE}; {fits}"
    time = surrogate.time
    log_step, deviation = time.difference(time.closed_form_of(best.recipe), time.closed_form_of(reference.recipe))
    middle, low, high = gain_interval(-float(log_step[0]), float(deviation[0]), 0.0)
    over = f"{speedup_text(1 + middle)} trial {reference.number}"
    return f"{NOT_AT_FULL_SIZE}; predicted {over} (90 %: {interval(1 + low, 1 + high)}), {fits}"


def _saves(document: Document, recipe: Recipe) -> str:
    planned, saved, price = recipe.tune.planned_gpu_hours, document.saved_gpu_hours, document.gpu_hour_price
    if planned is None or saved is None:
        return ""
    low, middle, high = saved
    unit = gpu_or_rank(recipe.cluster.gpu_name)
    money = f", {significant(price * middle)} at {price:g} per {unit}-hour" if price is not None else ""
    by = ", by a simulation" if document.simulated else ""
    if middle <= 0:
        return f"none of the planned {significant(planned)} {unit}-hours"
    return (
        f"{significant(middle)} of the planned {significant(planned)} {unit}-hours (95 % interval "
        f"{significant(low)} to {significant(high)}){money}{by}"
    )


def _needed(material: Material, recipe: Recipe) -> str:
    """Returns the predicted needs of an infeasible study's recipe; empty for other studies."""
    if material.document.status != "infeasible":
        return ""
    section = feasible(material)
    if section is None:
        return "a recipe that runs: no trial failed for memory, so more nodes will not help; the first failure is below"
    limit = f" of {gib(recipe.memory_limit_gib)}" if recipe.memory_limit_gib else ""
    as_given = f"The base recipe needs about {gib(estimate_memory(recipe).peak_gib)} per rank{limit}."
    return f"{section.paragraphs[0]} {as_given}"


def _changes(material: Material) -> Table | None:
    """Returns a table with a row for each accepted change; None if there is none."""
    rows = tuple(_change_rows(material))
    columns = ("kept", "throughput", "lost time that changed most", "change")
    return Table(columns=columns, rows=rows) if rows else None


def _change_rows(material: Material) -> Iterator[tuple[str, ...]]:
    for step in material.path:
        if step.parent is not None and step.trial.accepted:
            by = f"trial {step.trial.number}: {titles_text(step.trial)}"
            changes = acting_changes(step.trial.recipe, step.trial.changes)
            yield by, obtained_text(step, material.unit), largest_changes(step), first_changes(changes)


def _target(recipe: Recipe) -> str:
    framework = framework_of(recipe)
    return framework.name if framework.script else DEFAULT
