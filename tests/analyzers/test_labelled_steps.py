"""The verdict on simulated MoE steps whose losses are known: what a cause costs is found by taking it away."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from analyzers.diagnosis import Wall
from tests.analyzers.moe_steps.judge import Judged, judge_all
from tests.analyzers.moe_steps.program import EXPERT, Allocate, Host, Instruction, Kernel, Machine, Sync
from tests.analyzers.moe_steps.scenarios import SCENARIOS, draw
from tests.analyzers.moe_steps.truth import NO_WALL, Loss, truth
from tests.draws import few
from tests.rows import filled

SEEDS = (range(2), range(2, 11))  # per scenario: those of make test, and those that make test-full adds
RIGHT = 0.98


@cache
def _judged(seeds: range) -> Sequence[Judged]:
    return judge_all((scenario, seed) for scenario in SCENARIOS for seed in seeds)


@pytest.mark.parametrize("seeds", few(SEEDS, 1), ids=str)
def test_the_verdict_is_right_and_never_sure_of_a_wrong_wall(seeds: range) -> None:
    judged = _judged(seeds)
    wrong = [one for one in judged if not one.right]
    said = "\n".join(map(str, wrong))
    assert [one for one in judged if one.confident_and_wrong] == [], said
    assert len(wrong) <= (1 - RIGHT) * len(judged), said


def test_every_case_can_be_drawn_again() -> None:
    for scenario in filled(SCENARIOS):
        one, again = draw(scenario, 3), draw(scenario, 3)
        assert (one.truth, one.recordings[0].events) == (again.truth, again.recordings[0].events)


@pytest.mark.parametrize("seeds", few(SEEDS, 1), ids=str)
def test_the_cases_ask_for_every_wall_and_for_every_loss_that_is_none(seeds: range) -> None:
    leaders = {one.leader for one in _judged(seeds)}
    assert leaders >= set(Loss)
    assert set(NO_WALL) < set(Loss)


def _kernel(us: float, **fields: Any) -> Kernel:
    return Kernel("gemm", (us,), (5.0,), **fields)


def test_a_kernel_starts_when_it_is_launched_its_stream_is_free_and_what_it_needs_is_done() -> None:
    machine = Machine(1)
    machine.run([[_kernel(100.0), _kernel(30.0, stream=EXPERT, after=(0,)), _kernel(10.0), Sync((0, EXPERT))]])
    assert machine.free[0][:2] == [115.0, 135.0]
    assert machine.host == [135.0]


def test_a_collective_ends_on_all_ranks_when_the_last_has_come() -> None:
    machine = Machine(2)
    machine.run(
        [
            [
                Kernel("gemm", (100.0, 400.0), (5.0, 5.0)),
                Kernel("a2a", (20.0, 20.0), (5.0, 5.0), EXPERT, (0,), collective=True),
            ]
        ]
    )
    assert [free[EXPERT] for free in machine.free] == [425.0, 425.0]


@pytest.mark.parametrize(
    ("more", "loss", "gain"),
    [
        (Host((300.0,)), Loss.HOST, 310 / 415),
        (Allocate((100.0,), "cudaMalloc"), Loss.MEMORY, 100 / 215),
        (_kernel(50.0, communication=True), Loss.COMMUNICATION, 45 / 160),
        (Sync((0,), wait_us=200.0), Loss.BUBBLE, 200 / 310),
    ],
)
def test_what_a_cause_costs_is_what_the_program_saves_without_it(more: Instruction, loss: Loss, gain: float) -> None:
    steps: list[list[Instruction]] = [[_kernel(100.0), Sync((0,)), more, _kernel(5.0), Sync((0,))]]
    found = truth(steps, 1, warm_up=0)
    assert found.gain[loss] == pytest.approx(gain, abs=0.03)
    assert found.accepted == {Wall.UNDETERMINED if loss in NO_WALL else Wall(loss)}
