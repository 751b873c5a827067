from __future__ import annotations

import pytest

from trainer.engines.simulated.pipeline import Run, Shape, run_pipeline, shortened
from trainer.engines.simulated.schedule import Pass, Schedule


def schedule(pp: int, microbatches: int, *, vpp: int = 1, merged: bool = False) -> Schedule:
    return Schedule(pp=pp, vpp=vpp, microbatches=microbatches, group=pp if vpp > 1 else 1, merged=merged)


def one_and_two(rank: int, shape: Shape) -> float:
    """Returns 1 us for a forward pass, 2 for a backward."""
    return sum(1.0 if forward else 2.0 for forward, _ in shape)


def played(given: Schedule, *, send_us: float = 0.0) -> Run:
    return run_pipeline(given, one_and_two, send_us=send_us, overlapped=given.vpp > 1)


def length(run: Run) -> float:
    return max(run.until_us(rank) for rank in range(run.schedule.pp))


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 5), (2, 4), (4, 8), (4, 100), (8, 64), (16, 512)])
def test_the_bubble_of_1f1b_is_one_micro_batch_for_each_further_stage(pp: int, microbatches: int) -> None:
    assert length(played(schedule(pp, microbatches))) == pytest.approx(3.0 * (microbatches + pp - 1))


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(2, 2, 8), (4, 2, 64), (8, 4, 64), (4, 8, 16)])
def test_interleaving_divides_the_bubble_by_the_chunks(pp: int, vpp: int, microbatches: int) -> None:
    whole = length(played(schedule(pp, microbatches, vpp=vpp)))
    assert whole == pytest.approx(3.0 * (microbatches * vpp + pp - 1))


def test_woven_passes_are_one_turn_after_the_warm_up() -> None:
    run = played(schedule(1, 4, merged=True))
    assert [len(turn.passes) for turn in run.turns[0]] == [1, 2, 2, 2, 1]
    assert run.turns[0][1].passes == (Pass(True, 0, 1), Pass(False, 0, 0))


def test_what_is_sent_is_waited_for_where_nothing_overlaps() -> None:
    assert length(played(schedule(4, 16), send_us=0.5)) > length(played(schedule(4, 16))) + 16 * 0.5


def test_a_slow_stage_decides_the_period() -> None:
    def uneven(rank: int, shape: Shape) -> float:
        return one_and_two(rank, shape) * (1.5 if rank == 2 else 1.0)

    run = run_pipeline(schedule(4, 100), uneven, send_us=0.0, overlapped=False)
    assert run.period_us == pytest.approx(4.5)
    assert length(run) == pytest.approx(4.5 * 100 + 3 * 3.0, rel=0.01)


@pytest.mark.parametrize("vpp", [1, 4])
def test_a_long_step_is_played_in_part(vpp: int) -> None:
    given = schedule(8, 512, vpp=vpp)
    assert shortened(given).microbatches < 64
    assert played(given).left_out > 0
    few = schedule(8, 16, vpp=vpp)
    assert shortened(few) == few


def test_every_pass_is_there_once() -> None:
    for rank in range(4):
        order = schedule(4, 8, vpp=2).order(rank)
        assert len(set(order)) == len(order) == 2 * 8 * 2
