"""Compares P(fits) as predicted before any burst with what measured runs did."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.fit_probability import (
    LIMITS,
    Peak,
    allocated_prior,
    certified,
    log_loss,
    predicted_and_fitting,
    read_reserved,
    scaled,
)
from benchmarks.golden_runs import golden_runs
from benchmarks.places import DATA, data_file
from policies.surrogate.memory import EXTRA, GROUPS, table_memory_prior
from tests.rows import filled


@cache
def exact() -> tuple[Peak, ...]:
    """Returns twelve measured runs whose peaks are estimated exactly."""
    runs = [run for run in golden_runs(data_file("golden_runs.csv", folder=DATA)) if run.recipe][:12]
    gib = 2.0**30
    return tuple(
        Peak(
            recipe=run.recipe,
            case=run.case,
            rank=-1,
            measured_gib=run.peak_bytes / gib,
            estimated_gib=run.peak_bytes / gib,
        )
        for run in runs
        if run.recipe
    )


def test_a_larger_limit_fits_more_often_as_said_and_as_it_happened() -> None:
    rows = predicted_and_fitting(exact(), allocated_prior())
    assert sum(row.pairs for row in rows) == len(LIMITS) * len(exact())
    for lower, higher in pairwise(rows):
        assert lower.predicted < higher.predicted
        assert lower.fitting <= higher.fitting
    assert (rows[0].fitting, rows[-1].fitting) == (0.0, 1.0)
    assert all(row.certified[0] <= row.fitting <= row.certified[1] for row in rows)


def test_what_fragmentation_takes_makes_fewer_runs_fit() -> None:
    without, half, all_of_them = (
        predicted_and_fitting(exact(), table_memory_prior(), taken) for taken in ((0.0,), (0.0, 0.3), (0.3,))
    )
    for none, some, each in zip(filled(without), half, all_of_them, strict=True):
        assert some.fitting == pytest.approx(none.fitting / 2)
        assert each.fitting == 0.0


def test_exact_estimates_deserve_narrower_spreads() -> None:
    wide, narrow = (log_loss(exact(), scaled(allocated_prior(), times)) for times in (1.0, 0.25))
    assert narrow < wide


def test_only_the_spreads_of_the_estimate_are_scaled() -> None:
    before, after = table_memory_prior(), scaled(table_memory_prior(), 0.5)
    ratio = dict(zip((*GROUPS, "outside"), after.spread / before.spread, strict=True))
    assert ratio == {name: 1.0 if name in (*EXTRA, "outside") else 0.5 for name in ratio}
    assert np.array_equal(before.mean, after.mean)


def test_more_cases_certify_more() -> None:
    few, many = certified(1.0, 8), certified(1.0, 65)
    assert few[0] < many[0] < few[1] == many[1] == 1.0
    assert certified(0.0, 65) == pytest.approx((0.0, 1 - many[0]))


def test_published_runs_reserve_more_than_they_allocate() -> None:
    runs = read_reserved(data_file("reserved_memory.csv", folder=DATA))
    assert all(run.share > 0 and run.source for run in runs)
    assert {run.ran_out for run in runs} == {True, False}
