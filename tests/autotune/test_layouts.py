"""`plan`: every layout it lists is legal, and what fits with the most data parallelism comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands.plan import plan
from autotune.layouts import layouts
from trainer.recipe import load_recipe
from trainer.recipe.rules import FindingKind, check


def test_every_layout_is_legal_and_counts_its_ranks() -> None:
    recipe = load_recipe("cpu-moe")
    found = layouts(recipe)
    assert found
    for layout in found:
        tp, pp, cp, _ = layout.sizes.values()
        assert tp * pp * cp * layout.data_parallel_size == recipe.world_size
        legal = recipe.replace({**layout.sizes, "expert_tensor_parallel_size": 1, "sequence_parallel": tp > 1})
        assert not [finding for finding in check(legal) if finding.kind is FindingKind.ERROR]


def test_what_fits_comes_first_then_the_most_data_parallelism() -> None:
    found = layouts(load_recipe("cpu-moe"))
    assert [layout.rank for layout in found] == sorted(layout.rank for layout in found)
    assert found[0].fits
    assert found[0].data_parallel_size == max(layout.data_parallel_size for layout in found if layout.fits)


def test_without_memory_nothing_fits_and_the_least_is_still_listed() -> None:
    recipe = load_recipe("cpu-moe")
    starved = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"memory_gib": 0.001})})
    assert not any(layout.fits for layout in layouts(starved))


def test_a_layout_that_fits_only_by_its_peak_is_a_maybe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    upper = sorted({layout.upper_gib for layout in layouts(load_recipe("cpu-moe"))})[0]
    recipe = load_recipe("cpu-moe")
    cluster = recipe.cluster.model_copy(update={"memory_gib": upper * 0.999})
    text = recipe.model_copy(update={"cluster": cluster}).to_yaml()
    (tmp_path / "tight.yaml").write_text(text)
    plan(str(tmp_path / "tight.yaml"))
    table = capsys.readouterr().out
    assert table.split()[:5] == ["TP", "PP", "CP", "EP", "DP"]
    assert " maybe " in table
    assert " yes " not in table
