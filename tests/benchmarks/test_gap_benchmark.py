"""The published runs that ship are those of the benchmarks, and the cause of a slowed simulated run is named from its
log and trace."""

from __future__ import annotations

from benchmarks.gap import judged, rows
from benchmarks.published_table import TABLE, table


def test_the_table_that_ships_is_that_of_the_gathered_rows() -> None:
    assert TABLE.read_text() == table(), "python -m benchmarks.published_table"


def test_a_slowed_router_leads_the_causes() -> None:
    result = judged(3)
    assert result.leads
    assert result.named[0].name == "router"
    assert [row.split("  ")[0].strip() for row in rows([result], 3)] == ["router", "all"]
