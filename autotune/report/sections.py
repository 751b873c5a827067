"""The sections of a report in reading order: what markdown prints and the page sets beside its figures.

A section is text and a table, made by a pure function of the material; None where it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.report.agreement import agreement
from autotune.report.changes import not_tried, path, recipe, rejected
from autotune.report.feasible import feasible
from autotune.report.learnt import learnt
from autotune.report.links import links
from autotune.report.material import Material, Section
from autotune.report.measurements import environment, losses, memory, noise, steps, throughput, unlike_production

SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    agreement,
    feasible,
    steps,
    throughput,
    path,
    learnt,
    links,
    memory,
    losses,
    recipe,
    rejected,
    not_tried,
    noise,
    unlike_production,
    environment,
)


AT_THE_END = (learnt, not_tried)  # they ask the policy, which takes its time


def sections_of(material: Material, *, running: bool = False) -> list[Section]:
    """Every section that has something to say; of a running study those that cost nothing to make."""
    makers = (make for make in SECTIONS if not (running and make in AT_THE_END))
    return [section for make in makers if (section := make(material)) is not None]
