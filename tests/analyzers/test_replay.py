"""What a step would be shorter by: the device run again without some of its work, behind the same host."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers import analyze
from analyzers.diagnosis import Wall
from analyzers.intervals import EMPTY, window
from analyzers.one_rank.breakdown import Breakdown, break_down
from analyzers.readers import read
from tests.analyzers.drawing import DISPATCH, GEMM, Drawing


def _breakdown(drawing: Drawing, folder: Path) -> Breakdown:
    (timeline,) = read(drawing.write(folder))
    return break_down(timeline)


def _saved(found: Breakdown) -> list[float]:
    assert found.replay is not None
    return found.replay.saved_us(found.work.exposed_communication)


def _exchange(*, next_launch: float) -> Drawing:
    """Compute, 300 us of exchange, compute; the host waits for the end."""
    drawing = Drawing().step(0, 0, 1000)
    drawing.kernel(GEMM, 5, 200, launched=0).kernel(DISPATCH, 200, 500, launched=10, stream=8)
    drawing.kernel(GEMM, 500, 1000, launched=next_launch).call("cudaDeviceSynchronize", next_launch + 10, 1000)
    return drawing


@pytest.mark.parametrize(("next_launch", "saved"), [(20, 300), (300, 188), (400, 88), (480, 8)])
def test_hidden_communication_comes_back_as_far_as_the_next_launch_allows(
    tmp_path: Path, next_launch: float, saved: float
) -> None:
    assert _saved(_breakdown(_exchange(next_launch=next_launch), tmp_path)) == [pytest.approx(saved)]


def test_a_host_that_waited_for_the_communication_launches_sooner_without_it(tmp_path: Path) -> None:
    drawing = Drawing().step(0, 0, 1010).kernel(GEMM, 5, 200, launched=0)
    drawing.kernel(DISPATCH, 200, 500, launched=10, stream=8).call("cudaStreamSynchronize", 20, 505)
    drawing.kernel(GEMM, 520, 1000, launched=510).call("cudaDeviceSynchronize", 520, 1005)
    assert _saved(_breakdown(drawing, tmp_path)) == [pytest.approx(300)]


def test_a_host_that_polls_for_the_token_counts_launches_sooner_without_the_communication_before_them(
    tmp_path: Path,
) -> None:
    notify = "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)"
    drawing = Drawing().step(0, 0, 1010).kernel(DISPATCH, 5, 300, launched=0, stream=8)
    drawing.kernel(notify, 300, 310, launched=10, stream=8).kernel(GEMM, 330, 1000, launched=320)
    drawing.call("cudaDeviceSynchronize", 330, 1005)
    assert _saved(_breakdown(drawing, tmp_path)) == [pytest.approx(300, abs=15)]


def test_a_prefetch_on_a_stream_of_its_own_holds_up_nothing(tmp_path: Path) -> None:
    drawing = _exchange(next_launch=20).copy("Memcpy HtoD (Pinned -> Device)", 604, 610, launched=600, stream=9)
    assert _saved(_breakdown(drawing, tmp_path)) == [pytest.approx(300)]


def test_taking_nothing_away_saves_nothing(tmp_path: Path) -> None:
    found = _breakdown(_exchange(next_launch=300), tmp_path)
    assert found.replay is not None
    assert found.replay.saved_us(EMPTY) == [0.0]


def test_work_done_again_is_saved_with_the_hosts_time_to_issue_it(tmp_path: Path) -> None:
    drawing = Drawing().step(0, 0, 612)
    for k in range(6):  # a launch every 100 us, each of 20 us of work; the second half is issued again
        drawing.kernel(GEMM, k * 100 + 10, k * 100 + 30, launched=k * 100 + 5)
    drawing.range("recompute", 300, 600).call("cudaDeviceSynchronize", 600, 612)
    found = _breakdown(drawing, tmp_path)
    assert found.replay is not None
    saved = found.replay.saved_us(found.work.recomputing, window(300, 600))
    assert saved == [pytest.approx(300, abs=15)]


def test_the_communication_wall_counts_what_comes_back_and_says_what_does_not(tmp_path: Path) -> None:
    finding = analyze([_exchange(next_launch=400).write(tmp_path)]).diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert finding.recoverable_us == pytest.approx(88)
    assert finding.parts == {"ep_dispatch": pytest.approx(88)}
    assert any("the host is not far enough ahead" in line for line in finding.evidence)
