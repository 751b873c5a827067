from __future__ import annotations

from benchmarks.machine_files import page
from tests.places import ROOT


def test_the_page_of_machine_files_is_made_from_their_schema() -> None:
    assert (ROOT / "docs" / "machines.md").read_text(encoding="utf-8") == page()
