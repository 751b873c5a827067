"""Ranges projected onto the device: what each one launched, from its own thread and from those that work for it."""

from __future__ import annotations

from pathlib import Path

from analyzers.diagnosis import RangeTime
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.analyzers.drawing import BACKWARD, GEMM, Drawing

LOADER = 300


def _ranges(drawing: Drawing, folder: Path) -> dict[str, RangeTime]:
    (timeline,) = read(drawing.write(folder))
    return {found.name: found for found in break_down(timeline).report().ranges}


def _own(found: RangeTime) -> tuple[int, float]:
    return found.kernels, found.device_us


def _all(found: RangeTime) -> tuple[int, float]:
    return found.kernels_all_threads, found.device_all_threads_us


def test_a_range_owns_what_its_thread_launched_while_it_was_open_wherever_it_ran(tmp_path: Path) -> None:
    drawing = Drawing().range("forward", 0, 10).range("forward", 50, 60).range("other", 20, 40)
    drawing.kernel(GEMM, 100, 130, launched=5).kernel(GEMM, 130, 135, launched=55).kernel(GEMM, 140, 200, launched=30)
    found = _ranges(drawing, tmp_path)
    assert (found["forward"].count, found["forward"].host_us) == (2, 20)
    assert _own(found["forward"]) == (2, 35)
    assert _own(found["other"]) == (1, 60)


def test_a_launch_counts_once_in_ranges_of_one_name_that_nest(tmp_path: Path) -> None:
    drawing = Drawing().range("block", 0, 100).range("block", 20, 60).range("model", 0, 100)
    found = _ranges(drawing.kernel(GEMM, 200, 210, launched=30), tmp_path)
    assert (found["block"].count, found["block"].host_us, _own(found["block"])) == (2, 100, (1, 10))
    assert _own(found["model"]) == (1, 10)


def test_copies_are_not_counted_as_work_of_a_range(tmp_path: Path) -> None:
    found = _ranges(Drawing().range("load", 0, 100).copy("Memcpy HtoD", 200, 210, launched=30), tmp_path)
    assert _own(found["load"]) == (0, 0)


def test_autograds_thread_works_for_the_range_that_called_backward(tmp_path: Path) -> None:
    drawing = Drawing().range("forward", 0, 30).range("backward", 30, 100)
    drawing.kernel(GEMM, 10, 20, launched=5).kernel(GEMM, 40, 50, launched=35)
    drawing.kernel(GEMM, 60, 80, launched=50, thread=BACKWARD).kernel(GEMM, 80, 99, launched=70, thread=BACKWARD)
    found = _ranges(drawing, tmp_path)
    assert _own(found["backward"]) == (1, 10)
    assert _all(found["backward"]) == (3, 49)
    assert _all(found["forward"]) == _own(found["forward"]) == (1, 10)


def test_a_thread_that_launches_at_the_same_time_does_not_work_for_the_range(tmp_path: Path) -> None:
    drawing = Drawing().range("forward", 0, 100)
    for k in range(10):
        drawing.kernel(GEMM, 10 * k + 3, 10 * k + 5, launched=10 * k)
        drawing.kernel(GEMM, 10 * k + 6, 10 * k + 7, launched=10 * k + 1 + k % 4, thread=LOADER, stream=8)
    assert _all(_ranges(drawing, tmp_path)["forward"]) == (10, 20)


def test_a_range_of_a_thread_that_launches_nothing_has_the_work_of_those_it_waits_for(tmp_path: Path) -> None:
    drawing = Drawing().range("serve", 0, 100, thread=LOADER).kernel(GEMM, 20, 30, launched=10)
    found = _ranges(drawing, tmp_path)["serve"]
    assert (_own(found), _all(found)) == ((0, 0), (1, 10))


def test_the_ranges_longest_on_the_host_are_kept(tmp_path: Path) -> None:
    drawing = Drawing().kernel(GEMM, 0, 1, launched=0)
    for k in range(60):
        drawing.range(f"block {k}", 100 * k, 100 * k + 10 + k)
    assert list(_ranges(drawing, tmp_path)) == [f"block {k}" for k in range(59, 19, -1)]
