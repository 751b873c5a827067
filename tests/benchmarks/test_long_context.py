"""docs/long-context.md is what its command prints: every model at every length, with its feasibility."""

from __future__ import annotations

import re

import pytest

from autotune.plan.document import planned
from benchmarks.long_context import CASES, COLUMNS, HEADER, SEQUENCES, SHOWN, Case, row
from tests.places import ROOT
from tests.rows import filled

ONE_COPY = ("deepseek-v3", "| 256K |")  # the guides' own layout there has DP 1 too

PAGE = (ROOT / "docs" / "long-context.md").read_text(encoding="utf-8")


def test_the_page_begins_with_how_it_is_made() -> None:
    assert PAGE.startswith(HEADER)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_every_length_has_its_layouts_and_says_how_many_gpus_it_takes(case: Case) -> None:
    section = PAGE.split(f"## {case.title}\n")[1].split("\n## ")[0]
    assert f"| {' | '.join(COLUMNS)} |" in section
    for sequence in SEQUENCES:
        assert re.search(rf"^\| {sequence // 1024}K \| {case.tokens // sequence:,} \|", section, re.MULTILINE)
        assert re.search(rf"^- {sequence // 1024}K: .*GPUs", section, re.MULTILINE)
    assert section.count("\n| ") == 1 + SHOWN * len(SEQUENCES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_what_is_proposed_follows_the_rules_of_thumb(case: Case) -> None:
    """Checks that a GPU holds 2K to 8K tokens of a sequence, that the first layout has DP above 1, and that neither
    core attention nor whole layers are recomputed."""
    section = PAGE.split(f"## {case.title}\n")[1].split("\n## ")[0]
    for line in filled(filter(re.compile(r"\| (\d+K| )").match, section.splitlines())):
        share, dp, settings = line.split(" | ")[3:6]
        assert 2 <= float(share.removesuffix("K")) <= 8
        first = not line.startswith("|  |")
        assert int(dp) > 1 or not first or (case.model, line[:8]) == ONE_COPY
        assert "core_attn" not in settings
        assert "recompute full" not in settings


def test_the_first_row_of_the_page_is_what_plan_proposes_today() -> None:
    case, sequence = CASES[0], SEQUENCES[0]
    assert row(planned(case.recipe(sequence), top=1).choices[0], first=True) in PAGE
