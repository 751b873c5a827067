"""Checks what a report says that the study has learned of its cluster, besides the constants of the step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from autotune.report.learned import outside
from tests.policies.drawn import cpu_recipe, gpu_recipe, outcome, trial
from trainer.estimate.memory.estimate import estimate_memory

RECIPE = gpu_recipe()


@pytest.mark.parametrize(("times", "said"), [(1.0, ", as estimated (trial 1)."), (1.5, ", not the estimated ")])
def test_what_gpus_hold_outside_the_allocator_is_shown_next_to_the_estimate(times: float, said: str) -> None:
    held = times * estimate_memory(RECIPE).outside_gib
    trials = [
        trial(RECIPE, number=number, given=replace(outcome(RECIPE), outside_gib=[held * share]))
        for number, share in enumerate((0.5, 1.0))
    ]
    (line,) = outside(trials)
    assert line.startswith(f"GPUs hold up to {held:.2f} GiB outside torch's allocator")
    assert said in line


def test_no_memory_outside_the_allocator_is_shown_where_no_gpu_reported_it() -> None:
    assert not list(outside([trial(RECIPE), trial(cpu_recipe())]))
