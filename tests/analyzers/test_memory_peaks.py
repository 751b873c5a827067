"""Memory over time, drawn by hand: the peak, what holds it, what the allocator did; and real traces, added up."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from analyzers import analyze
from analyzers.diagnosis import MemoryUse, Wall
from analyzers.memory.peaks import BEFORE, CURVE_POINTS
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.analyzers.drawing import BACKWARD, GEMM, Drawing
from tests.places import TRACES, WITHOUT_SHARED

GIB = 1 << 30


def _use(drawing: Drawing, folder: Path) -> MemoryUse:
    (timeline,) = read(drawing.write(folder))
    use = break_down(timeline).memory
    assert use is not None
    return use


def _step() -> Drawing:
    """Draws one step of 1000 us on a device of 80 GiB."""
    return Drawing(device_bytes=80 * GIB).step(1, 0, 1000).kernel(GEMM, 10, 900, launched=5)


def _evidence(folder: Path) -> list[str]:
    finding = analyze([folder]).diagnosis.finding(Wall.MEMORY)
    assert finding is not None
    return finding.evidence


def test_the_peak_is_in_its_step_and_phase(tmp_path: Path) -> None:
    drawing = _step().range("experts", 500, 700)
    drawing.memory(100, 10 * GIB, address=1, allocated=40 * GIB, reserved=60 * GIB)
    drawing.memory(620, 20 * GIB, address=2, allocated=60 * GIB, reserved=60 * GIB)
    drawing.memory(800, -20 * GIB, address=2, allocated=40 * GIB, reserved=60 * GIB)
    use = _use(drawing, tmp_path)
    assert (use.source, use.peak_gib, use.peak_at_us, use.limit_gib) == ("memory_events", 60, 620, 80)
    assert (use.peak_step, use.peak_at_share, use.peak_phase) == ("ProfilerStep#1", 0.62, "experts")
    assert use.curve == [(100, 40), (620, 60), (800, 40)]
    assert "the rank peaks at 60.00 of 80.00 GiB (75 %), 62 % into ProfilerStep#1, in experts" in [
        line.replace("rank 0", "the rank") for line in _evidence(tmp_path)
    ]


def test_blocks_alive_at_the_peak_are_named_by_their_allocation(tmp_path: Path) -> None:
    drawing = _step().range("attention", 50, 150).range("experts", 150, 300)
    drawing.operator("aten::empty", 310, 320).operator("aten::cat", 400, 420).operator("aten::empty", 405, 410)
    for time, change, address in (
        (60, 1, 1),
        (70, 1, 2),
        (80, -1, 2),  # freed before the peak
        (160, 2, 3),
        (200, 4, 2),  # the same address again
        (408, 8, 4),
        (500, -4, 2),  # freed after it
        (600, -3, 9),  # allocated before the recording
    ):
        drawing.memory(time, change * GIB, address=address, allocated=(20 + 2 * time // 100) * GIB, reserved=40 * GIB)
    drawing.memory(410, 1, address=5, allocated=40 * GIB, reserved=40 * GIB)
    use = _use(drawing, tmp_path)
    held = {what: round(gib, 6) for what, gib in use.held_at_peak.items()}
    assert held == {BEFORE: 25, "aten::cat": 8, "experts": 6, "attention": 1}


def test_autograds_threads_work_for_the_annotation_of_the_thread_that_marks_the_step(tmp_path: Path) -> None:
    drawing = _step().range("experts", 100, 400)
    drawing.operator("autograd::engine::evaluate_function: MmBackward0", 200, 300, BACKWARD)
    drawing.operator("autograd::engine::evaluate_function: MmBackward0", 500, 600, BACKWARD)
    drawing.memory(250, 2 * GIB, address=1, allocated=2 * GIB, reserved=9 * GIB, thread=BACKWARD)
    drawing.memory(550, 3 * GIB, address=2, allocated=5 * GIB, reserved=9 * GIB, thread=BACKWARD)
    use = _use(drawing, tmp_path)
    assert use.peak_phase == "backward"
    assert use.held_at_peak == {"backward": 3, "experts (backward)": 2}


def test_traces_without_totals_tell_the_least_that_was_allocated(tmp_path: Path) -> None:
    use = _use(_step().memory(10, -2 * GIB).memory(20, 5 * GIB).memory(30, -5 * GIB), tmp_path)
    assert (use.peak_gib, use.at_least, use.reserved_gib, use.allocator_retries) == (5, True, None, None)
    assert use.held_at_peak == {}
    assert any("at least 5.00 of 80.00 GiB" in line for line in _evidence(tmp_path))


def test_memory_reserved_and_never_allocated_is_fragmentation(tmp_path: Path) -> None:
    drawing = _step().memory(10, GIB, address=1, allocated=30 * GIB, reserved=50 * GIB)
    drawing.memory(20, 8 * GIB, address=2, allocated=38 * GIB, reserved=64 * GIB)
    drawing.memory(30, 8 * GIB, address=3, allocated=46 * GIB, reserved=64 * GIB)
    use = _use(drawing, tmp_path)
    assert (use.reserved_gib, use.fragmentation_gib) == (64, 18)
    assert "18.00 of the 64.00 GiB reserved are never allocated (fragmentation)" in _evidence(tmp_path)


def _asked_again(drawing: Drawing, *, first: float = 100) -> Drawing:
    """Draws a driver that is asked for memory at `first`, cached memory released at 200 and 300, and the driver asked
    again at 400."""
    drawing.memory(50, GIB, address=1, allocated=70 * GIB, reserved=78 * GIB)
    drawing.call("cudaMalloc", first, first + 20).call("cudaFree", 200, 220).call("cudaFree", 300, 320)
    drawing.call("cudaMalloc", 400, 420)
    return drawing.memory(450, 6 * GIB, address=2, allocated=76 * GIB, reserved=79 * GIB)


def test_an_allocation_for_which_the_cache_was_given_back_is_a_retry(tmp_path: Path) -> None:
    use = _use(_asked_again(_step()), tmp_path)
    assert (use.allocator_retries, use.driver_allocations) == (1, 4)
    assert (
        "rank 0 failed to allocate once with 79.00 of 80.00 GiB taken, and freed cached memory to retry"
    ) in _evidence(tmp_path)


def test_emptying_the_cache_is_no_retry(tmp_path: Path) -> None:
    assert _use(_asked_again(_step(), first=20), tmp_path).allocator_retries == 0


def test_calls_to_the_driver_are_counted_and_timed(tmp_path: Path) -> None:
    drawing = _step()
    for k in range(7):
        drawing.call("cudaMalloc", 100 * k, 100 * k + 10).call("cudaFree", 100 * k + 20, 100 * k + 30)
    drawing.call("cudaMallocHost", 800, 850).write(tmp_path)
    assert "14 cudaMalloc and cudaFree per step take 0.14 ms" in _evidence(tmp_path)


def test_a_long_curve_is_thinned_and_keeps_its_peak(tmp_path: Path) -> None:
    drawing = _step()
    for k in range(3000):
        level = 50 if k == 1234 else k % 7
        drawing.memory(k / 10, GIB, address=k, allocated=level * GIB, reserved=60 * GIB)
    use = _use(drawing, tmp_path)
    assert len(use.curve) <= CURVE_POINTS
    assert (123.4, 50) in use.curve


def test_the_hosts_memory_is_that_of_a_rank_that_computes_on_cpus(tmp_path: Path) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 100).operator("aten::mm", 10, 50)
    use = _use(drawing.memory(20, GIB, device=None, address=1, allocated=GIB, reserved=0), tmp_path)
    assert (use.peak_gib, use.at_least, use.reserved_gib, use.peak_phase) == (1, True, None, "aten::mm")


def test_a_trace_without_memory_says_nothing_of_it(tmp_path: Path) -> None:
    (timeline,) = read(_step().write(tmp_path))
    assert break_down(timeline).memory is None


def test_the_order_of_events_does_not_matter(tmp_path: Path) -> None:
    drawing = _asked_again(_step().range("experts", 30, 460))
    before = _use(drawing, tmp_path)
    random.Random(7).shuffle(drawing.events)
    assert _use(drawing, tmp_path) == before


@pytest.mark.parametrize("name", ["ddp_v100x2_rank1", "qwen05b_h100", "resnet50_w0"])
def test_real_traces_peak_where_their_events_add_up_to_most(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(WITHOUT_SHARED)
    document = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
    given = sorted(
        (event["ts"], event["args"]["Bytes"], event["args"].get("Total Allocated"), event["args"].get("Addr"))
        for event in document["traceEvents"]
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 1
    )
    (timeline,) = read(path)
    use = break_down(timeline).memory
    assert use is not None
    if use.at_least:
        level, levels = 0, [0]
        for _, change, *_ in given:
            level += change
            levels.append(level)
        assert use.peak_gib * GIB == max(levels) - min(levels)
        return
    peak = max(allocated for *_, allocated, _ in given)
    assert use.peak_gib * GIB == peak
    alive: dict[int, int] = {}
    for _, change, allocated, address in given:
        if change > 0:
            alive[address] = change
        else:
            alive.pop(address, None)
        if allocated == peak:
            break
    held = {what: gib for what, gib in use.held_at_peak.items() if what != BEFORE}
    assert sum(held.values()) * GIB == pytest.approx(sum(alive.values()), abs=1)
