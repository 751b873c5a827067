"""The measure of a bisection: CPU time replaces wall-clock time only where the machine is too busy and both agree."""

from __future__ import annotations

from autotune.bisect.measure import Measure, measure_of
from policies.trial import Trial
from tests.autotune.tuning.test_judge import BASE, trial_of
from tests.policies.drawn import gpu_recipe
from trainer.burst import Outcome
from trainer.recipe import Recipe

STEADY, BUSY = (1.0, 1.01), (1.0, 2.4)  # bursts of one recipe, by the clock


def end(number: int, wall: tuple[float, float], cpu: tuple[float, float] | None, recipe: Recipe = BASE) -> Trial:
    """Returns recipe A or B of a bisection with two bursts: seconds of a step by the clock, and of CPU time."""
    outcomes = [
        Outcome(step_us=[1e6 * wall[at]] * 4, cpu_us=[1e6 * cpu[at]] * 4 if cpu else [], tokens_per_step=2048, ranks=2)
        for at in range(2)
    ]
    return trial_of(*outcomes, number=number, bursts=(1 + number, 4 - number), recipe=recipe)


def measure(a: Trial, b: Trial) -> Measure:
    return measure_of(a, b, [a, b])


def test_a_steady_clock_is_the_measure() -> None:
    assert measure(end(0, STEADY, (1.0, 1.01)), end(1, STEADY, (1.5, 1.51))) is Measure.WALL


def test_a_busy_machine_is_compared_by_cpu_time() -> None:
    assert measure(end(0, BUSY, (1.0, 1.01)), end(1, BUSY, (1.5, 1.51))) is Measure.CPU


def test_cpu_time_does_not_stand_for_a_slowdown_that_waits() -> None:
    slow = (18.0, 20.0)
    assert measure(end(0, (1.0, 1.4), (1.0, 1.01)), end(1, slow, (1.2, 1.21))) is Measure.WALL


def test_cpu_time_says_nothing_where_b_takes_no_more_of_it() -> None:
    assert measure(end(0, BUSY, (1.0, 1.01)), end(1, BUSY, (1.0, 1.01))) is Measure.WALL


def test_gpu_ranks_and_ranks_without_cpu_time_are_compared_by_the_clock() -> None:
    gpu = gpu_recipe()
    assert measure(end(0, BUSY, (1.0, 1.01), gpu), end(1, BUSY, (1.5, 1.51), gpu)) is Measure.WALL
    assert measure(end(0, BUSY, None), end(1, BUSY, None)) is Measure.WALL
    assert measure_of(end(0, BUSY, None), None, []) is Measure.WALL
