"""The partition of a GPU's step, drawn by hand. Causes of idle time: test_idle_causes; any events: test_properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analyzers.drawing import ALL_TO_ALL, BACKWARD, DISPATCH, GEMM, Drawing
from tests.analyzers.taken_apart import breakdown_of, step_of


def test_compute_hides_communication_and_both_hide_copies(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 10, 50, launched=0)
    drawing.kernel(ALL_TO_ALL, 30, 70, launched=0, stream=8).copy("Memcpy DtoH", 40, 90, launched=0)
    step = step_of(drawing, tmp_path)
    assert (step.compute_us, step.communication_us, step.copy_us) == (40, 40, 50)
    assert (step.exposed_communication_us, step.exposed_copy_us, step.idle_us) == (20, 20, 20)


def test_a_gap_is_the_hosts_when_the_next_launch_came_after_it_began(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 0, 40, launched=0).kernel(GEMM, 70, 100, launched=60)
    step = step_of(drawing, tmp_path)
    assert step.idle_by_cause.host_us == 30


def test_a_gap_before_work_launched_earlier_is_a_wait_on_the_device(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 0, 40, launched=0).kernel(GEMM, 70, 100, launched=20)
    step = step_of(drawing, tmp_path)
    assert (step.idle_by_cause.host_us, step.idle_by_cause.sync_us) == (0, 30)


def test_a_gap_before_a_kernel_without_a_launch_accuses_nobody(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 0, 40, launched=0).kernel(GEMM, 70, 100)
    step = step_of(drawing, tmp_path)
    assert (step.idle_by_cause.host_us, step.idle_by_cause.unattributed_us) == (0, 30)


def test_idle_is_the_devices_and_not_a_streams(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 0, 60, launched=0).kernel(GEMM, 50, 100, launched=45, stream=8)
    assert step_of(drawing, tmp_path).idle_us == 0


def test_the_end_of_a_step_with_nothing_launched_is_the_hosts(tmp_path: Path) -> None:
    step = step_of(Drawing().step(1, 0, 100).kernel(GEMM, 0, 40, launched=0), tmp_path)
    assert step.idle_by_cause.host_us == 60


def test_blocking_in_a_pipeline_exchange_is_a_bubble(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 0, 40, launched=0).kernel(GEMM, 70, 100, launched=68)
    drawing.range("pp_send_recv", 30, 66).call("cudaStreamSynchronize", 35, 65)
    step = step_of(drawing, tmp_path)
    assert (step.idle_by_cause.bubble_us, step.idle_by_cause.host_us) == (25, 5)


def test_host_idle_says_what_the_host_was_doing(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 200).kernel(GEMM, 0, 10, launched=0).kernel(GEMM, 180, 200, launched=178)
    drawing.range("gc", 20, 60).call("cudaMalloc", 60, 90).operator("aten::mm", 90, 120)
    breakdown = breakdown_of(drawing, tmp_path)
    host = {what: breakdown.measure(when)[0] for what, when in breakdown.host.items()}
    assert host == {"garbage_collection": 40, "allocator": 30, "operators": 30, "launching": 2, "python": 68}
    assert breakdown.measure(breakdown.allocator) == [30]


def test_deepep_kernels_are_communication_by_their_name(tmp_path: Path) -> None:
    step = step_of(Drawing().step(1, 0, 100).kernel(DISPATCH, 0, 30, launched=0), tmp_path)
    assert step.communication_by_kind["ep_dispatch"].exposed_us == 30
    assert step.compute_us == 0


@pytest.mark.parametrize(
    ("around", "kind"), [("combine", "ep_combine"), ("gradient_sync", "dp"), ("pp_send_recv", "pp"), ("step", "other")]
)
def test_the_range_a_collective_was_launched_from_gives_its_kind(tmp_path: Path, around: str, kind: str) -> None:
    drawing = Drawing().step(1, 0, 100).range(around, 0, 10, thread=BACKWARD)
    drawing.kernel("ncclDevKernel_AllGather_RING_LL(x)", 50, 80, launched=5, thread=BACKWARD)
    assert set(step_of(drawing, tmp_path).communication_by_kind) == {kind}


def test_the_innermost_meaningful_range_decides(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).range("gradient_sync", 0, 40).range("dispatch", 2, 30).range("experts", 4, 20)
    drawing.kernel(ALL_TO_ALL, 50, 80, launched=10)
    assert set(step_of(drawing, tmp_path).communication_by_kind) == {"ep_dispatch"}


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("default_pg", "all_to_all"),
    ],
)
def test_the_process_group_gives_the_kind_if_no_range_does(tmp_path: Path, group: str, kind: str) -> None:
    arguments: dict[str, Any] = {"Process Group Description": group, "Collective name": "all_to_allv"}
    drawing = Drawing().step(1, 0, 100).kernel(ALL_TO_ALL, 50, 80, launched=5, **arguments)
    assert set(step_of(drawing, tmp_path).communication_by_kind) == {kind}


def test_exposed_kinds_that_run_together_are_counted_once(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(DISPATCH, 0, 60, launched=0)
    drawing.kernel(DISPATCH.replace("dispatch", "combine"), 40, 100, launched=0, stream=8)
    kinds = step_of(drawing, tmp_path).communication_by_kind
    assert {k: (t.busy_us, t.exposed_us) for k, t in kinds.items()} == {
        "ep_dispatch": (60, 60),
        "ep_combine": (60, 40),
    }


def test_work_launched_from_a_recompute_range_is_recompute(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 200).range("recompute", 10, 50, thread=BACKWARD)
    drawing.kernel(GEMM, 60, 90, launched=20, thread=BACKWARD).kernel(GEMM, 90, 130, launched=60, thread=BACKWARD)
    drawing.kernel(DISPATCH, 130, 150, launched=30, thread=BACKWARD)
    step = step_of(drawing, tmp_path)
    assert step.compute_by_class == {"recompute": 30, "gemm": 40}
    assert step.recompute_us == 50


def test_recompute_shows_in_checkpoint_functions_without_any_range(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 200).operator("CheckpointFunctionBackward", 10, 100, thread=BACKWARD)
    drawing.operator("autograd::engine::evaluate_function: MmBackward0", 60, 95, thread=BACKWARD)
    drawing.kernel(GEMM, 110, 140, launched=30, thread=BACKWARD).kernel(GEMM, 140, 200, launched=70, thread=BACKWARD)
    assert step_of(drawing, tmp_path).recompute_us == 30


def test_old_categories_and_steps_written_as_operators_are_read(tmp_path: Path) -> None:
    drawing = Drawing()
    drawing.operator("ProfilerStep#5", 0, 100).kernel(GEMM, 10, 40, launched=0, category="Kernel")
    for event in drawing.events:
        event["cat"] = {"cpu_op": "Operator", "cuda_runtime": "Runtime"}.get(event["cat"], event["cat"])
    step = step_of(drawing, tmp_path)
    assert (step.name, step.compute_us) == ("ProfilerStep#5", 30)


def test_step_ranges_are_numbered_where_the_profiler_marked_none(tmp_path: Path) -> None:
    drawing = Drawing().range("step", 0, 50).range("step", 50, 100).kernel(GEMM, 10, 90, launched=0)
    steps = breakdown_of(drawing, tmp_path).steps
    assert [(s.name, s.compute_us) for s in steps] == [("step#0", 40), ("step#1", 40)]
