"""The page of releases shows what the table of releases has."""

from __future__ import annotations

from tests.places import ROOT
from tests.rows import filled
from trainer.releases import belonging_to, standing_of, tested_cores


def test_every_tested_release_has_its_row_with_what_belongs_to_it() -> None:
    page = (ROOT / "docs/releases.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| 0.")}
    assert tuple(rows) == tested_cores()
    for core in filled(tested_cores()):
        row = belonging_to(core)
        assert row is not None
        for package in ("megatron-bridge", "transformer-engine"):
            (release,) = row.packages[package]
            assert release.version.removesuffix(".*") in rows[core]
        assert row.where in rows[core]


def test_the_table_tells_what_was_tested_from_what_belongs_together_and_what_fails() -> None:
    for versions, status in (
        ({"megatron-core": "0.19.2", "torch": "2.14.1", "python": "3.12.1"}, "tested"),
        ({"megatron-core": "0.16.1", "torch": "2.13.0+cpu", "python": "3.11.7"}, "tested"),
        ({"megatron-core": "0.16.1", "torch": "2.11.0", "transformer-engine": "2.10.0"}, "tested"),
        ({"megatron-core": "0.19.2", "torch": "2.14.0", "transformer-engine": "2.17.1"}, "belongs"),
        ({"megatron-core": "0.19.2", "torch": "2.15.0"}, "unknown"),
        ({"megatron-core": "0.19.2", "torch": "2.14.0", "transformer-engine": "2.20.2"}, "unknown"),
        ({"megatron-core": "0.21.0", "torch": "2.14.0"}, "unknown"),
        ({"megatron-core": "0.19.2", "torch": "2.14.0", "deep-ep": "2.0.0"}, "fails"),
        ({"torch": "2.14.0"}, "unknown"),
    ):
        assert standing_of(versions).status == status, versions
