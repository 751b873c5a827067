"""Snapshots of torch's allocator in the structure that torch.cuda.memory documents, drawn by hand."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzers import TraceError, analyze
from analyzers.diagnosis import MemoryUse, Wall
from analyzers.memory.peaks import BEFORE
from analyzers.ranks.snapshots import snapshot_report
from analyzers.readers.snapshots import read_snapshot
from tests.analyzers.drawing import GEMM, Drawing
from tests.rows import filled

GIB = 1 << 30
UNIX_US = 1_700_000_000_000_000


def _frame(name: str, file: str = "/home/user/moe/experts.py", line: int = 12) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


TORCH = _frame("empty", "/usr/lib/python3/site-packages/torch/functional.py")


class Allocator:
    """Writes what torch's allocator would, of one device."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def did(
        self, action: str, at_us: int, gib: float, address: int = 0, *stack: dict[str, Any], **more: Any
    ) -> Allocator:
        entry = {"action": action, "addr": address, "size": int(gib * GIB), "stream": 0, "time_us": UNIX_US + at_us}
        self.entries.append({**entry, "frames": list(stack), **more})
        return self

    def segment(self, address: int, gib: float, *blocks: tuple[str, float, list[dict[str, Any]]]) -> Allocator:
        """Adds a segment. blocks: state, GiB and stack of each, from the segment's start on."""
        drawn, at = [], address
        for state, size, frames in blocks:
            drawn.append(
                {"address": at, "size": int(size * GIB), "requested_size": int(size * GIB), "state": state}
                | {"frames": frames}
            )
            at += int(size * GIB)
        self.segments.append(
            {"device": 0, "address": address, "total_size": int(gib * GIB), "stream": 0, "segment_type": "large"}
            | {"blocks": drawn}
        )
        return self

    def annotated(self, name: str, start_us: int, end_us: int) -> Allocator:
        for stage, time in (("START", start_us), ("END", end_us)):
            self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": UNIX_US + time})
        return self

    def write(self, folder: Path, name: str = "snapshot_0.pickle", protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
        document = {
            "segments": self.segments,
            "device_traces": [self.entries],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
            "external_annotations": self.annotations,
        }
        path = folder / name
        path.write_bytes(pickle.dumps(document, protocol=protocol))
        return path


def _use(path: Path) -> MemoryUse:
    use = snapshot_report(path).memory
    assert use is not None
    return use


def _history() -> Allocator:
    """Returns a history with 40 GiB allocated before it started, a peak of 50 GiB at 200 us, and 44 GiB at the end, of
    60 GiB reserved."""
    expert = _frame("forward")
    allocator = Allocator().segment(
        1 * GIB, 60, ("active_allocated", 40, []), ("active_allocated", 4, [expert]), ("inactive", 16, [])
    )
    return (
        allocator.did("alloc", 100, 4, 41 * GIB, TORCH, expert)
        .did("alloc", 200, 6, 45 * GIB, TORCH, _frame("dispatch", line=7))
        .did("free_requested", 300, 6, 45 * GIB)
        .did("free_completed", 301, 6, 45 * GIB)
        .did("snapshot", 400, 0)
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_levels_are_counted_back_from_what_is_held_at_the_end(tmp_path: Path, protocol: int) -> None:
    use = _use(_history().write(tmp_path, protocol=protocol))
    assert (use.source, use.peak_gib, use.peak_at_us) == ("snapshot", 50, UNIX_US + 200)
    assert (use.reserved_gib, use.fragmentation_gib, use.allocator_retries, use.out_of_memory) == (60, 10, 0, 0)
    assert use.peak_phase == "dispatch (experts.py:7)"
    assert use.held_at_peak == {BEFORE: 40, "dispatch (experts.py:7)": 6, "forward (experts.py:12)": 4}


def test_blocks_without_their_allocation_are_named_by_their_own_stack(tmp_path: Path) -> None:
    allocator = Allocator().segment(GIB, 20, ("active_allocated", 12, [TORCH, _frame("build", line=3)]))
    use = _use(allocator.did("alloc", 5, 1, 50 * GIB).did("free_requested", 9, 1, 50 * GIB).write(tmp_path))
    assert use.held_at_peak == {"build (experts.py:3)": 12, "no stack recorded": 1}


def test_annotations_name_the_phase_and_the_step(tmp_path: Path) -> None:
    allocator = _history().annotated("ProfilerStep#3", 0, 400).annotated("experts", 150, 250)
    use = _use(allocator.write(tmp_path))
    assert (use.peak_phase, use.peak_step, use.peak_at_share) == ("experts", "ProfilerStep#3", 0.5)


def test_segments_given_back_to_get_another_are_a_retry_and_emptying_the_cache_is_none(tmp_path: Path) -> None:
    allocator = _history()
    for at, name in ((310, "forward"), (320, "empty_cache")):
        allocator.did("segment_free", at, 2, 90 * GIB, _frame(name))
        allocator.did("segment_alloc", at + 1, 2, 95 * GIB, _frame("forward"))
    use = _use(allocator.write(tmp_path))
    assert use.allocator_retries == 1


def test_a_snapshot_alone_says_nothing_of_time(tmp_path: Path) -> None:
    _history().write(tmp_path, "snapshot_3.pickle")
    analysis = analyze([tmp_path])
    (report,) = analysis.traces
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert "has no timing" in analysis.diagnosis.because
    assert (report.format, report.rank, report.steps) == ("snapshot", 3, [])
    assert report.memory is not None


def test_an_allocation_that_failed_makes_memory_the_wall(tmp_path: Path) -> None:
    allocator = _history().did("oom", 500, 30, device_free=2 * GIB)
    diagnosis = analyze([allocator.write(tmp_path, "oom_rank-2_snapshot.pickle")]).diagnosis
    assert diagnosis.wall is Wall.MEMORY
    assert diagnosis.because == "rank 2 ran out of memory once"


def test_a_snapshot_belongs_to_the_trace_of_its_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        drawing = Drawing(rank=rank, device_bytes=80 * GIB).step(1, UNIX_US, UNIX_US + 1000)
        drawing.kernel(GEMM, UNIX_US + 10, UNIX_US + 900, launched=UNIX_US + 5).write(tmp_path)
    _history().write(tmp_path, "snapshot_1.pickle")
    first, second = analyze([tmp_path]).traces
    assert first.memory is None
    assert second.memory is not None
    assert (second.memory.peak_step, round(second.memory.peak_at_share or 0, 2)) == ("ProfilerStep#1", 0.2)


def test_a_damaged_snapshot_is_reported_and_its_trace_diagnosed(tmp_path: Path) -> None:
    Drawing().step(1, 0, 100).kernel(GEMM, 10, 90, launched=5).write(tmp_path)
    path = _history().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    (report,) = analyze([tmp_path]).traces
    assert report.memory is None
    assert any(warning.startswith("snapshot_0.pickle is not a complete memory snapshot") for warning in report.warnings)


def test_a_history_that_was_not_recorded_leaves_what_is_held(tmp_path: Path) -> None:
    use = _use(Allocator().segment(GIB, 8, ("active_allocated", 5, [_frame("build")])).write(tmp_path))
    assert (use.peak_gib, use.reserved_gib, use.peak_at_us) == (5, 8, None)
    assert use.held_at_peak == {"build (experts.py:12)": 5}


class _Runs:
    """An object that, when unpickled, would call a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("call", ["os.system", "builtins.eval", "pathlib"])
def test_a_snapshot_never_runs_code(tmp_path: Path, protocol: int, call: str) -> None:
    made = tmp_path / "made"
    what = {
        "os.system": _Runs(os.system, f"touch {made}"),
        "builtins.eval": _Runs(eval, f"open({str(made)!r}, 'w')"),
        "pathlib": _Runs(Path.touch, made),
    }[call]
    path = tmp_path / "snapshot_0.pickle"
    path.write_bytes(pickle.dumps({"segments": [what], "device_traces": []}, protocol=protocol))
    with pytest.raises(TraceError, match="has data only"):
        analyze([path])
    assert not made.exists()
    pickle.loads(path.read_bytes())
    assert made.exists(), "the pickle does what it is said to do where nothing holds it back"


def test_a_snapshot_cut_anywhere_is_refused_with_its_name(tmp_path: Path) -> None:
    whole = _history().write(tmp_path).read_bytes()
    path = tmp_path / "cut.pickle"
    for length in filled(range(len(whole) - 1, 0, -7)):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"cut\.pickle"):
            read_snapshot(path)


@pytest.mark.parametrize(
    "document",
    [
        {"segments": 3},
        {"segments": [7, {"blocks": None}], "device_traces": [[None, {"action": "alloc", "size": "x"}], 9]},
        {"segments": [{"device": 1 << 60, "blocks": [{}]}], "device_traces": None, "external_annotations": [{}]},
        {"device_traces": [[{"action": "alloc", "size": -5, "addr": None, "time_us": None, "frames": [1]}]]},
        ["segments"],
    ],
)
def test_other_values_under_the_keys_of_a_snapshot_are_refused_or_read(tmp_path: Path, document: object) -> None:
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps(document))
    with contextlib.suppress(TraceError):
        snapshot_report(path)


def test_pickles_of_other_things_in_a_folder_are_left_alone(tmp_path: Path) -> None:
    Drawing().step(1, 0, 100).kernel(GEMM, 10, 90, launched=5).write(tmp_path)
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))
    assert len(analyze([tmp_path]).traces) == 1
