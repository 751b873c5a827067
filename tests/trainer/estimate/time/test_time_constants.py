"""The constants of the time estimate: bounds, the published runs that they fit, the dispatch that was measured."""

import numpy as np
import pytest

from tests.places import FACTS
from tests.rows import filled
from tests.trainer.estimate.time.test_time import recipe_of
from trainer.estimate.candidates import one
from trainer.estimate.time.constants import constants
from trainer.estimate.time.links import dispatch_s


def test_every_constant_is_within_its_bounds() -> None:
    from trainer.estimate.time.constants import constant_table

    for row in filled(constant_table().values()):
        assert row.low is None or row.high is None or row.low <= row.value <= row.high, row.name


def test_the_constants_in_the_table_are_those_that_fit_the_published_runs() -> None:
    from benchmarks.published_runs import contradicting, read_runs
    from benchmarks.time_accuracy import Estimates
    from benchmarks.time_fit import Fit
    from trainer.estimate.time.constants import constant_table

    runs, _ = read_runs(facts=FACTS)
    apart = {run.row for run in contradicting(runs)}
    runs = [run for run in runs if run.family != "hybrid" and run.row not in apart]
    fit = Fit(runs, rows=list(constant_table().values()), predict=Estimates())
    errors = np.abs(np.expm1(fit.errors(fit.start)))
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.15


# arXiv 2603.07685 table 7: 4096 tokens of 7168 channels, top 8 of 256 experts; microseconds
TABLE_7 = [
    ("gb200", "hybridep", 8, 391),
    ("gb200", "hybridep", 64, 675),
    ("gb200", "alltoall", 8, 735),
    ("gb200", "alltoall", 64, 930),
    ("h100", "hybridep", 8, 661),
    ("h100", "hybridep", 16, 1485),
    ("h100", "hybridep", 32, 3064),
    ("h100", "hybridep", 64, 4626),
    ("h100", "alltoall", 8, 1265),
    ("h100", "alltoall", 16, 5774),
    ("h100", "alltoall", 64, 9164),
]


@pytest.mark.parametrize(("gpu", "library", "ranks", "measured_us"), TABLE_7)
def test_dispatch_takes_what_was_measured(gpu: str, library: str, ranks: int, measured_us: float) -> None:
    kind = {"moe_token_dispatcher_type": "alltoall"}
    if library != "alltoall":
        kind = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": library}
    nodes = 64 // (4 if gpu == "gb200" else 8)
    recipe = recipe_of(gpu, nodes, "deepseek-v3", expert_model_parallel_size=ranks, **kind)
    assert float(dispatch_s(one(recipe), constants())) * 1e6 == pytest.approx(measured_us, rel=0.25)
