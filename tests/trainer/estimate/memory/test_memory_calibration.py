"""The memory estimate against Megatron-LM's functional tests on real GPUs: what the packaged table says of it."""

import pytest

from benchmarks.golden_runs import golden_runs
from benchmarks.memory_accuracy import LARGE_GIB, Judged, coverage, error_by_rank, groups, judge
from tests.places import FACTS
from trainer.estimate.memory.bound import FEATURES, calibrations

GOLDEN = FACTS / "golden_runs.csv"
# Runs above 20 GiB that the point misses by more than 5 %, with what explains it; the bound holds for each.
BEYOND_FIVE_PERCENT = {
    "nemotron3_5_lightning_nightly_tp1_pp1_cp1_ep8_dgx_gb200": "untrained router, 128 experts: a load of 1.5 means",
}


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return judge(golden_runs(GOLDEN))


def test_the_table_is_what_the_benchmark_computes(judged: list[Judged]) -> None:
    assert calibrations() == groups(judged)


def test_every_feature_has_a_row() -> None:
    assert set(calibrations()) == {"MoE", "dense", *FEATURES}


def test_moe_peaks_are_within_the_targets(judged: list[Judged]) -> None:
    moe = [each for each in judged if each.run.is_moe]
    assert calibrations()["MoE"].median_pct <= 5.0
    assert calibrations()["MoE"].p90_pct <= 12.0
    large = {each.run.case: each for each in moe if each.measured_gib > LARGE_GIB}
    assert {case for case, each in large.items() if abs(each.error) > 0.05} <= set(BEYOND_FIVE_PERCENT)
    assert all(large[case].peak < large[case].measured_gib < large[case].upper for case in BEYOND_FIVE_PERCENT)


def test_the_bound_holds_for_nearly_all_moe_runs_and_is_not_far_above(judged: list[Judged]) -> None:
    held, above = coverage([each for each in judged if each.run.is_moe])
    assert held >= 0.98
    assert above <= 0.15


def test_the_last_pipeline_rank_is_the_one_that_was_measured(judged: list[Judged]) -> None:
    errors = error_by_rank(golden_runs(GOLDEN))
    assert min(errors, key=lambda name: errors[name]) == "last"
