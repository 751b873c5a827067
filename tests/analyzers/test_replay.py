"""Checks how much shorter a step would be without some of its device work, launched by the same host."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers import analyze
from analyzers.diagnosis import Wall
from analyzers.intervals import EMPTY, window
from analyzers.one_rank.breakdown import Breakdown
from analyzers.one_rank.digest import digest
from tests.analyzers.drawing import DISPATCH, GEMM, Drawing
from tests.analyzers.taken_apart import breakdown_of

NORM = "void at::native::elementwise_kernel<4>"


def _saved(found: Breakdown) -> list[float]:
    assert found.replay is not None
    return found.replay.saved_us(found.work.exposed_communication)


def _exchange(*, next_launch: float) -> Drawing:
    """Draws compute, 300 us of exchange, and compute; the host waits for the end."""
    drawing = Drawing().step(0, 0, 1000)
    drawing.kernel(GEMM, 5, 200, launched=0).kernel(DISPATCH, 200, 500, launched=10, stream=8)
    drawing.kernel(GEMM, 500, 1000, launched=next_launch).call("cudaDeviceSynchronize", next_launch + 10, 1000)
    return drawing


@pytest.mark.parametrize(("next_launch", "saved"), [(20, 300), (300, 188), (400, 88), (480, 8)])
def test_exposed_communication_comes_back_as_far_as_the_next_launch_allows(
    tmp_path: Path, next_launch: float, saved: float
) -> None:
    assert _saved(breakdown_of(_exchange(next_launch=next_launch), tmp_path)) == [pytest.approx(saved)]


def test_a_host_that_waited_for_the_communication_launches_sooner_without_it(tmp_path: Path) -> None:
    drawing = Drawing().step(0, 0, 1010).kernel(GEMM, 5, 200, launched=0)
    drawing.kernel(DISPATCH, 200, 500, launched=10, stream=8).call("cudaStreamSynchronize", 20, 505)
    drawing.kernel(GEMM, 520, 1000, launched=510).call("cudaDeviceSynchronize", 520, 1005)
    assert _saved(breakdown_of(drawing, tmp_path)) == [pytest.approx(300)]


def test_a_host_that_polls_for_the_token_counts_launches_sooner_without_the_communication_before_them(
    tmp_path: Path,
) -> None:
    notify = "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)"
    drawing = Drawing().step(0, 0, 1010).kernel(DISPATCH, 5, 300, launched=0, stream=8)
    drawing.kernel(notify, 300, 310, launched=10, stream=8).kernel(GEMM, 330, 1000, launched=320)
    drawing.call("cudaDeviceSynchronize", 330, 1005)
    assert _saved(breakdown_of(drawing, tmp_path)) == [pytest.approx(300, abs=15)]


def test_a_prefetch_on_a_stream_of_its_own_holds_up_nothing(tmp_path: Path) -> None:
    drawing = _exchange(next_launch=20).copy("Memcpy HtoD (Pinned -> Device)", 604, 610, launched=600, stream=9)
    assert _saved(breakdown_of(drawing, tmp_path)) == [pytest.approx(300)]


def test_taking_nothing_away_saves_nothing(tmp_path: Path) -> None:
    found = breakdown_of(_exchange(next_launch=300), tmp_path)
    assert found.replay is not None
    assert found.replay.saved_us(EMPTY) == [0.0]


def test_work_done_again_is_saved_with_the_hosts_time_to_issue_it(tmp_path: Path) -> None:
    drawing = Drawing().step(0, 0, 612)
    for k in range(6):  # a launch every 100 us, each of 20 us of work; the second half is issued again
        drawing.kernel(GEMM, k * 100 + 10, k * 100 + 30, launched=k * 100 + 5)
    drawing.range("recompute", 300, 600).call("cudaDeviceSynchronize", 600, 612)
    found = breakdown_of(drawing, tmp_path)
    assert found.replay is not None
    saved = found.replay.saved_us(found.work.recomputing, window(300, 600))
    assert saved == [pytest.approx(300, abs=15)]


def test_the_communication_wall_counts_what_comes_back_and_says_what_does_not(tmp_path: Path) -> None:
    finding = analyze([_exchange(next_launch=400).write(tmp_path)]).diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert finding.recoverable_us == pytest.approx(88)
    assert finding.parts == {"ep_dispatch": pytest.approx(88)}
    assert any("the host is not far enough ahead" in line for line in finding.evidence)


def _ahead(microbatches: int, *, held: int | None = None) -> Drawing:
    """Draws micro batches of 60 us of exchange and 40 us of compute, launched in 10 us each before the device runs
    them; an excerpt holds only a few."""
    drawn = held or microbatches
    end = 100.0 + 100 * drawn
    drawing = Drawing().step(0, 0, end + 10)
    for k in range(drawn):
        drawing.kernel(DISPATCH, 100 + 100 * k, 160 + 100 * k, launched=10 * k, stream=8)
        drawing.kernel(GEMM, 160 + 100 * k, 200 + 100 * k, launched=10 * k + 5)
    drawing.call("cudaDeviceSynchronize", 10 * drawn + 5, end)
    if held:
        stands = {"start_us": 300.0, "end_us": 400.0, "times": 1.0 + microbatches - held}
        drawing.header = {"microbatches": microbatches, "microbatches_traced": held, "repeated": [stands]}
    return drawing


def test_a_host_that_ran_ahead_of_what_repeats_holds_up_an_excerpt_no_more_than_the_whole(tmp_path: Path) -> None:
    for folder in (tmp_path / "whole", tmp_path / "excerpt"):
        folder.mkdir()
    (whole,) = _saved(breakdown_of(_ahead(40), tmp_path / "whole"))
    assert whole == pytest.approx(40 * 60, abs=15)
    assert _saved(breakdown_of(_ahead(40, held=6), tmp_path / "excerpt")) == [pytest.approx(whole, abs=15)]


def test_compute_gives_back_what_is_no_arithmetic_first_and_nothing_that_overlaps_a_copy(tmp_path: Path) -> None:
    drawing = Drawing().step(0, 0, 1010).kernel(NORM, 5, 205, launched=0).kernel(GEMM, 205, 605, launched=1)
    drawing.kernel(GEMM, 605, 1005, launched=2).copy("Memcpy DtoH (Device -> Pinned)", 605, 1005, launched=3, stream=9)
    drawing.call("cudaDeviceSynchronize", 10, 1008)
    step = digest(breakdown_of(drawing, tmp_path)).steps[0]
    gained = [step.gained_by_compute_us(us) for us in (100, 200, 600, 1000)]
    assert gained == pytest.approx(
        [100, 200, 200 + 200, 200 + 400], abs=15
    )  # half of the arithmetic runs while the copy does


def test_offload_comes_back_as_far_as_the_next_launch_allows(tmp_path: Path) -> None:
    drawing = Drawing().step(0, 0, 1010).kernel(GEMM, 5, 200, launched=0)
    drawing.copy("Memcpy DtoH (Device -> Pinned)", 200, 350, launched=1, stream=9)
    drawing.copy("Memcpy HtoD (Pinned -> Device)", 350, 500, launched=2, stream=9)
    drawing.kernel(GEMM, 500, 1000, launched=400).call("cudaDeviceSynchronize", 410, 1005)
    finding = analyze([drawing.write(tmp_path)]).diagnosis.finding(Wall.MEMORY)
    assert finding is not None
    assert finding.parts == {"offload_copies": pytest.approx(88)}
