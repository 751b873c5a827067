"""Several ranks and run folders: who was slowest, who waited, what the outcome adds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analyzers import TraceError, Wall, analyze
from analyzers.diagnosis import Analysis
from tests.analyzers.drawing import ALL_TO_ALL, DISPATCH, GEMM, Drawing
from tests.rows import filled


def _rank(rank: int, compute_us: int, *, combine_until: int = 1000) -> Drawing:
    """Draws three steps of a rank: launch all at once, compute, then combine until the last rank arrives."""
    drawing = Drawing(rank=rank)
    combine = DISPATCH.replace("dispatch", "combine")
    for k in range(3):
        at = k * 1000
        drawing.step(k, at, at + 1000).kernel(GEMM, at, at + compute_us, launched=at)
        drawing.kernel(combine, at + compute_us, at + combine_until, launched=at, stream=8)
        drawing.call("cudaDeviceSynchronize", at + 5, at + combine_until)
    return drawing


def test_a_late_rank_is_named_and_the_others_waiting_is_not_communication(tmp_path: Path) -> None:
    for rank, compute in ((0, 500), (1, 900), (2, 600)):
        _rank(rank, compute).write(tmp_path)
    diagnosis = analyze([tmp_path]).diagnosis
    finding = diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert finding.parts == {"ep_combine": pytest.approx(100)}
    assert any("rank 0 waits" in line and "rank 1 only" in line for line in finding.evidence)


def test_ranks_that_wait_by_turns_lose_by_imbalance_what_no_wall_could_give_back(tmp_path: Path) -> None:
    for rank in (0, 1):
        drawing = Drawing(rank=rank)
        for k in range(2):
            drawing.step(k, k * 1000, k * 1000 + 1000)
            for half in (0, 1):  # each is late in one half of the step
                at, took = k * 1000 + half * 500, 400 if half == rank else 100
                drawing.kernel(GEMM, at, at + took, launched=at - 10)
                drawing.kernel(DISPATCH, at + took, at + 500, launched=at - 5, stream=8)
        drawing.write(tmp_path)
    diagnosis = analyze([tmp_path]).diagnosis
    assert diagnosis.wall is Wall.UNDETERMINED
    assert "waiting for slower ranks takes 30 %" in diagnosis.because


def test_one_rank_alone_cannot_tell_waiting_from_transfer(tmp_path: Path) -> None:
    finding = analyze([_rank(0, 500).write(tmp_path)]).diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert finding.recoverable_us == pytest.approx(500)


def test_ranks_with_different_collectives_are_not_matched(tmp_path: Path) -> None:
    _rank(0, 500).write(tmp_path)
    other = _rank(1, 900)
    for at in (0, 1000, 2000):
        other.kernel(DISPATCH.replace("dispatch", "combine"), at + 10, at + 20, launched=at, stream=9)
    other.write(tmp_path)
    assert not any("in collectives" in line for w in analyze([tmp_path]).diagnosis.walls for line in w.evidence)


def test_the_order_of_paths_does_not_matter_and_a_path_counts_once(tmp_path: Path) -> None:
    a, b = _rank(0, 500).write(tmp_path), _rank(1, 900).write(tmp_path)
    assert msgspec.json.encode(analyze([a, b])) == msgspec.json.encode(analyze([b, a, tmp_path]))


def test_two_traces_of_one_rank_are_not_averaged_as_one_job(tmp_path: Path) -> None:
    a, b = _rank(0, 500).write(tmp_path, "a.json"), _rank(0, 900).write(tmp_path, "b.json")
    with pytest.raises(TraceError, match=r"is of rank 0, as is .*a\.json") as raised:
        analyze([a, b])
    assert "bursts/0001" in raised.value.hint


def _outcome(folder: Path, **fields: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outcome.json").write_text(json.dumps({"schema": 1, "tokens_per_step": 4096, **fields}))


def test_a_run_folder_adds_its_outcome_to_its_traces(tmp_path: Path) -> None:
    _rank(0, 900).write(tmp_path / "trace")
    _outcome(tmp_path, peak_gib=[1.0], limit_gib=2.0, model_tflops_per_gpu=1.0, attainable_tflops_per_gpu=2.0)
    diagnosis = analyze([tmp_path]).diagnosis
    assert diagnosis.wall is Wall.COMPUTE
    assert diagnosis.walls[0].recoverable_us == pytest.approx(900 - 500)
    memory = diagnosis.finding(Wall.MEMORY)
    assert memory is not None
    assert "rank 0 peaks at 1.00 of 2.00 GiB (50 %)" in memory.evidence


def test_a_run_that_died_of_memory_is_diagnosed_from_its_folder_alone(tmp_path: Path) -> None:
    _outcome(tmp_path, failure={"kind": "oom", "phase": "init", "rank": 0, "evidence": "killed"}, limit_gib=1.0)
    analysis = analyze([tmp_path])
    assert (analysis.diagnosis.wall, analysis.traces) == (Wall.MEMORY, [])
    assert analysis.diagnosis.because == "rank 0 ran out of memory in init: killed"


def test_half_a_trace_of_a_failed_run_does_not_hide_its_failure(tmp_path: Path) -> None:
    _outcome(tmp_path, failure={"kind": "oom", "phase": "trace", "rank": 0, "evidence": "killed"})
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "rank0.pt.trace.json").write_text('{"schemaVersion": 1, "traceEvents": [')
    assert analyze([tmp_path]).diagnosis.wall is Wall.MEMORY


def test_only_steps_that_all_ranks_have_are_averaged(tmp_path: Path) -> None:
    _rank(0, 500).write(tmp_path)
    _rank(1, 900).step(3, 3000, 9000).write(tmp_path)
    diagnosis = analyze([tmp_path]).diagnosis
    said = filled(found.evidence[0] for found in diagnosis.walls if "ms per step" in found.evidence[0])
    assert all("of 1.0 ms per step" in evidence for evidence in said)


def test_a_file_that_holds_no_outcome_is_refused(tmp_path: Path) -> None:
    _rank(0, 900).write(tmp_path / "trace")
    (tmp_path / "outcome.json").write_text("[]")
    with pytest.raises(TraceError, match="not an outcome"):
        analyze([tmp_path])


def test_other_files_in_a_folder_are_left_alone(tmp_path: Path) -> None:
    _rank(0, 900).write(tmp_path)
    (tmp_path / "burst.json").write_text('{"number": 3}')
    (tmp_path / "notes.txt").write_text("hello")
    assert len(analyze([tmp_path]).traces) == 1


def test_an_analysis_survives_the_way_through_json(tmp_path: Path) -> None:
    analysis = analyze([_rank(0, 500).write(tmp_path)])
    assert msgspec.json.decode(msgspec.json.encode(analysis), type=Analysis) == analysis
    assert analysis.traces[0].warnings == []


def test_a_trace_without_steps_is_judged_as_one_and_says_so(tmp_path: Path) -> None:
    drawing = Drawing().kernel(GEMM, 0, 100, launched=0)
    (trace,) = analyze([drawing.write(tmp_path)]).traces
    assert trace.steps == []
    assert any("no step markers" in warning for warning in trace.warnings)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, analyzers; print([m for m in ('numpy', 'torch', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_step_that_walls_see_is_the_slowest_ranks_in_each_step(tmp_path: Path) -> None:
    """Rank 0 has most work in two steps, rank 1 in the third: no average of one rank shows them all."""
    for rank, works in ((0, (900, 900, 300)), (1, (300, 300, 900))):
        drawing = Drawing(rank=rank)
        for k, compute in enumerate(works):
            at = k * 1000
            drawing.step(k, at, at + 1000).kernel(GEMM, at, at + compute, launched=0)
            drawing.kernel(DISPATCH.replace("dispatch", "combine"), at + compute, at + 1000, launched=0, stream=8)
        drawing.write(tmp_path)
    analysis = analyze([tmp_path])
    finding = analysis.diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert "EP combine is exposed for 0.10 of 1.0 ms per step (10 %) on rank 0" in finding.evidence[0]
    assert [rank.own_us for rank in analysis.ranks] == pytest.approx([2400 / 3, 1800 / 3])


def test_of_stages_with_unequal_work_the_one_with_most_is_seen(tmp_path: Path) -> None:
    """The last stage computes 900 us of each step, the first 500 and then holds its device with a receive."""
    for rank, compute in ((0, 500), (1, 900)):
        drawing = Drawing(rank=rank)
        for k in range(3):
            at = k * 1000
            peers: dict[str, Any] = (
                {"Collective name": "send", "Dst Rank": 0} if rank else {"Collective name": "recv", "Src Rank": 1}
            )
            group: dict[str, Any] = {
                "Process Group Name": "7",
                "Process Group Description": "PIPELINE_MODEL_PARALLEL_GROUP",
            }
            drawing.step(k, at, at + 1000).kernel(GEMM, at, at + compute, launched=0)
            drawing.kernel(ALL_TO_ALL, at + compute, at + 1000, launched=0, stream=8, **group, **peers)
        drawing.write(tmp_path)
    analysis = analyze([tmp_path])
    assert [rank.waiting_by_kind.get("pp", 0.0) for rank in analysis.ranks] == pytest.approx([400.0, 0.0])
    finding = analysis.diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert "on rank 1" in finding.evidence[0]


def _alone(rank: int | None, *, at_us: float = 0.0, world_size: int | None = 2, kernel: str = GEMM) -> Drawing:
    drawing = Drawing(rank=rank or 0, world_size=world_size or 0)
    drawing.header = {"distributedInfo": {"rank": rank, "world_size": world_size}}
    return drawing.step(1, at_us, at_us + 100).kernel(kernel, at_us + 10, at_us + 90, launched=at_us)


SINCE_1970_US = 1.7e15  # on a clock that counts from 1970


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (_alone(0), _alone(1, world_size=4), "this one has 4 ranks, that one 2"),
        (_alone(0, at_us=SINCE_1970_US), _alone(1, at_us=SINCE_1970_US + 7200e6), "they were recorded 2.0 hours apart"),
        (
            _alone(None, world_size=None),
            _alone(None, world_size=None),
            "neither has a rank, and they do not communicate",
        ),
    ],
    ids=["sizes", "times", "strangers"],
)
def test_two_jobs_in_a_folder_are_refused_with_both_names(
    tmp_path: Path, one: Drawing, other: Drawing, says: str
) -> None:
    one.write(tmp_path, "first.json")
    other.write(tmp_path, "second.json")
    with pytest.raises(TraceError, match=says) as caught:
        analyze([tmp_path])
    assert "first.json" in str(caught.value)
    assert "second.json" in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_alone(0, at_us=SINCE_1970_US), _alone(1, at_us=SINCE_1970_US + 20e6)),  # clocks of nodes differ
        (_alone(0), _alone(1, world_size=None)),
        (_alone(None, world_size=None, kernel=ALL_TO_ALL), _alone(None, world_size=None, kernel=ALL_TO_ALL)),
    ],
    ids=["clocks", "size unknown", "exchange"],
)
def test_ranks_of_one_job_are_not_taken_for_two(tmp_path: Path, one: Drawing, other: Drawing) -> None:
    one.write(tmp_path, "first.json")
    other.write(tmp_path, "second.json")
    assert len(analyze([tmp_path]).traces) == 2


def test_the_step_that_is_shown_is_the_one_that_is_judged(tmp_path: Path) -> None:
    for rank, computed in ((0, (900, 300, 900)), (1, (400, 800, 400))):
        drawing = Drawing(rank=rank)
        for k, us in enumerate(computed):
            drawing.step(k, k * 1000, k * 1000 + 1000).kernel(GEMM, k * 1000, k * 1000 + us, launched=k * 1000)
            drawing.kernel(DISPATCH, k * 1000 + us, k * 1000 + 1000, launched=k * 1000, stream=8)
        drawing.write(tmp_path)
    analysis = analyze([tmp_path])
    assert [(one.trace, one.step[-1]) for one in analysis.judged] == [(0, "0"), (1, "1"), (0, "2")]
    steps = [next(s for s in analysis.traces[one.trace].steps if s.name == one.step) for one in analysis.judged]
    exposed = sum(step.communication_by_kind["ep_dispatch"].exposed_us for step in steps) / 3
    waiting = sum(step.waiting_by_kind.get("ep_dispatch", 0.0) for step in steps) / 3
    finding = analysis.diagnosis.finding(Wall.COMMUNICATION)
    assert finding is not None
    assert finding.parts["ep_dispatch"] == pytest.approx(exposed - waiting)
    waits = [step.waiting_by_kind.get("ep_dispatch", 0.0) for step in analysis.traces[1].steps]
    assert waits == pytest.approx([500, 0, 500])
