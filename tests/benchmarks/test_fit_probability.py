"""P(fits) said before any burst is put beside what measured runs did."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.fit_probability import LIMITS, said_and_happened
from benchmarks.golden_runs import golden_runs
from benchmarks.memory_accuracy import Judged
from benchmarks.places import DATA, data_file


def test_a_larger_limit_fits_more_often_as_said_and_as_it_happened() -> None:
    runs = [run for run in golden_runs(data_file("golden_runs.csv", folder=DATA)) if run.recipe][:12]
    exact = [Judged(run=run, resting=0.0, peak=run.peak_bytes / 2**30, upper=0.0) for run in runs]
    alone = [each for each in exact if each.run.recipe and each.run.recipe.knob("pipeline_model_parallel_size") == 1]
    assert alone
    rows = said_and_happened(exact)
    assert sum(row.questions for row in rows) == len(LIMITS) * len(alone)
    for lower, higher in pairwise(rows):
        assert lower.said < higher.said
        assert lower.happened <= higher.happened
    assert (rows[0].happened, rows[-1].happened) == (0.0, 1.0)
