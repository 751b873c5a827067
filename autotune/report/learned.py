"""The section on what was learned about the cluster: the estimate's constants before any burst and now."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autotune.looks.quantities import gib, significant
from autotune.looks.tables import Table
from autotune.report.material import Material, Section
from policies.surrogate.corrections import corrections
from policies.surrogate.evidence import evidence_of
from policies.trial import Trial
from trainer.estimate.memory.estimate import estimate_memory
from trainer.recipe import Recipe

MAX_ROWS = 16
SAME_REL_TOL = 0.005  # closer values agree in the three digits shown
UNITS = {"us": "µs"}  # units of the table of constants → as displayed


def learned(material: Material) -> Section | None:
    """Returns the section; None if nothing was calibrated."""
    study, surrogate = material.history.study, material.surrogate
    if study is None or surrogate is None:
        return None
    found = corrections(surrogate.time, Recipe.model_validate(study.recipe))
    rows = tuple(
        (
            one.words,
            UNITS.get(one.unit, one.unit),
            significant(one.before, 3),
            significant(one.after, 3),
            _interval(one.low, one.high),
        )
        for one in found[:MAX_ROWS]
    )
    traced = sum(bool(each.ranks) for each in surrogate.time.measured)
    paragraphs = (
        f"Constants of the step-time estimate, calibrated on {len(surrogate.time.measured)} recipes that ran ({traced} "
        "of them traced): the value of the tables, and the one that predictions use. Largest change first; constants "
        "that no burst measured keep the tables' value.",
        *outside(material.trials),
    )
    columns = ("what", "unit", "tables", "this cluster", "90 % interval")
    if not rows:
        return None
    table = Table(columns=columns, rows=rows, numbers=(2, 3, 4))
    return Section(key="learned", title="What was learned about this cluster", paragraphs=paragraphs, table=table)


def outside(trials: Sequence[Trial]) -> Iterator[str]:
    """Yields the largest measured memory outside torch's allocator, with its trial and the estimate."""
    measured = [each for each in evidence_of(trials) if each.outside_gib is not None]
    most = max(measured, key=lambda each: each.outside_gib or 0.0, default=None)
    if most is not None:
        estimated = estimate_memory(most.recipe).outside_gib
        is_same = math.isclose(estimated, most.outside_gib or 0.0, rel_tol=SAME_REL_TOL)
        words = "as estimated" if is_same else f"not the estimated {gib(estimated)}"
        yield f"GPUs hold up to {gib(most.outside_gib)} outside torch's allocator, {words} (trial {most.number})."


def _interval(low: float, high: float) -> str:
    return f"{significant(low, 3)} to {significant(high, 3)}"
