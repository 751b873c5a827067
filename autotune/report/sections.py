"""The sections of a report in reading order, printed by markdown and shown with figures by the page.

A section is text and a table, made by a pure function of the material; None if it has no content.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.report.agreement import agreement
from autotune.report.changes import not_tried, path, recipe, rejected
from autotune.report.feasible import feasible
from autotune.report.gains import predictions, waterfall
from autotune.report.learned import learned
from autotune.report.links import links
from autotune.report.material import Material, Section
from autotune.report.measurements import environment, losses, memory, noise, steps, throughput, unlike_production
from autotune.report.probed import probed
from autotune.report.shares import shares
from autotune.report.sizes import sizes

SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    agreement,
    feasible,
    steps,
    throughput,
    sizes,
    waterfall,
    predictions,
    path,
    shares,
    learned,
    probed,
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


FINISHED_ONLY = (learned, not_tried)  # slow, because they run the policy


def sections_of(material: Material, *, running: bool = False) -> list[Section]:
    """Returns every section with content; for a running study only those that are fast to make."""
    makers = (make for make in SECTIONS if not (running and make in FINISHED_ONLY))
    return [section for make in makers if (section := make(material)) is not None]
