"""The section on the links between the nodes, measured before the first burst."""

from __future__ import annotations

from autotune.looks.quantities import duration, significant
from autotune.looks.tables import Table
from autotune.report.material import Material, Section
from autotune.tuning.lines import failure_in_words
from policies.surrogate.links import SOURCE
from trainer.probe.links import Links

HOW_MEASURED = (
    "All-reduces of each rank with its peers on the other nodes, all ranks of a node at once, measured before the "
    "first burst."
)
LESSON_NOTE = "The network model starts from these values instead of the tables."


def links(material: Material) -> Section | None:
    """Returns the section; None if no links were probed: one node, or a recipe that disables it."""
    probed = material.history.probed
    if probed is None or (probed.rows and probed.links is None):
        return None
    found = probed.links
    text = HOW_MEASURED if found else f"They could not be measured: {failure_in_words(probed.failure)}."
    if any(lesson.study == SOURCE for lesson in material.history.lessons):
        text += f" {LESSON_NOTE}"
    table = Table(columns=("what", "measured"), rows=_rows(found)) if found else None
    return Section(key="links", title="Links between the nodes", paragraphs=(text,), table=table)


def _rows(found: Links) -> tuple[tuple[str, ...], ...]:
    over = ", ".join(filter(None, found.interfaces))
    rows = {
        "bandwidth per rank": f"{significant(found.bandwidth_gb_s, 3)} GB/s",
        "all-reduce size": f"{significant(found.message_mib, 3)} MiB",
        "4 KiB all-reduce": duration(found.latency_us),
        "backend": f"{found.backend} over {over}" if over else found.backend,
        "nodes": ", ".join(found.hosts),
        "ranks per node": str(found.ranks_per_node),
        "clock difference between nodes": duration(1e6 * found.clocks_apart_s),
        "delay until a file is visible on every node": duration(1e6 * found.folder_lag_s),
    }
    return tuple(rows.items())
