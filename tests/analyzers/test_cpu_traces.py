"""Ranks that compute on CPUs: operators are the work, gloo's ranges the communication, the rest the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers.errors import TraceError
from tests.analyzers.drawing import BACKWARD, GLOO_THREAD, Drawing
from tests.analyzers.taken_apart import breakdown_of, step_of


def _drawing() -> Drawing:
    """Draws a forward with a dispatch that is waited for, and a backward on autograd's thread."""
    drawing = Drawing(on_cpu=True).step(1, 0, 1000)
    drawing.range("attention", 0, 200).operator("aten::matmul", 10, 150).operator("aten::mm", 20, 140)
    drawing.range("dispatch", 200, 400).operator("_AllToAll", 210, 390).operator("c10d::alltoall_base_", 220, 230)
    drawing.range("gloo:all_to_all", 240, 380, thread=GLOO_THREAD)
    drawing.operator("aten::copy_", 300, 310, thread=GLOO_THREAD)
    drawing.range("experts", 400, 600).operator("aten::mm", 400, 560).operator("aten::silu", 560, 600)
    node = "autograd::engine::evaluate_function: MmBackward0"
    drawing.operator(node, 600, 900, thread=BACKWARD).operator("aten::mm", 610, 890, thread=BACKWARD)
    return drawing


def test_a_wait_for_a_collective_is_exposed_communication_of_its_launch_range(tmp_path: Path) -> None:
    step = step_of(_drawing(), tmp_path)
    assert {k: t.exposed_us for k, t in step.communication_by_kind.items()} == {"ep_dispatch": 140}
    assert step.compute_us == 140 + 160 + 40 + 280
    assert step.idle_by_cause.host_us == step.idle_us == 1000 - step.compute_us - 140


def test_operators_take_the_class_of_the_range_around_them(tmp_path: Path) -> None:
    classes = step_of(_drawing(), tmp_path).compute_by_class
    assert classes == {"attention": 140, "grouped_gemm": 160, "elementwise": 40, "gemm": 280}


def test_communication_under_an_operator_is_hidden(tmp_path: Path) -> None:
    drawing = _drawing().range("gradient_sync", 900, 920, thread=BACKWARD)
    drawing.operator("c10d::allreduce_coalesced_", 905, 910, thread=BACKWARD)
    drawing.range("gloo:all_reduce", 915, 990, thread=GLOO_THREAD).operator("aten::add_", 915, 980)
    dp = step_of(drawing, tmp_path).communication_by_kind["dp"]
    assert (dp.busy_us, dp.exposed_us) == (75, 10)


def test_an_all_to_all_from_nowhere_in_particular_stays_an_all_to_all(tmp_path: Path) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 100).operator("aten::mm", 0, 50)
    drawing.operator("c10d::alltoall_base_", 50, 55).range("gloo:all_to_all", 60, 90, thread=GLOO_THREAD)
    drawing.operator("c10d::allreduce_", 90, 92).range("gloo:all_reduce", 93, 99, thread=GLOO_THREAD)
    kinds = step_of(drawing, tmp_path).communication_by_kind
    assert {k: t.exposed_us for k, t in kinds.items()} == {"all_to_all": 30, "other": 6}


def test_a_reduce_scatter_that_gloo_does_by_reducing_all_belongs_where_it_was_launched(tmp_path: Path) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 200).operator("aten::mm", 0, 50).range("combine", 50, 70)
    drawing.operator("c10d::_reduce_scatter_base_", 55, 60).range("gloo:all_reduce", 62, 90, thread=GLOO_THREAD)
    drawing.operator("c10d::allreduce_", 100, 102).range("gloo:all_reduce", 103, 109, thread=GLOO_THREAD)
    kinds = step_of(drawing, tmp_path).communication_by_kind
    assert {k: t.exposed_us for k, t in kinds.items()} == {"ep_combine": 28, "other": 6}


def test_garbage_collection_is_the_hosts(tmp_path: Path) -> None:
    breakdown = breakdown_of(_drawing().range("gc", 930, 970), tmp_path)
    assert breakdown.measure(breakdown.host["garbage_collection"]) == [40]


def test_waiting_for_a_pipeline_receive_is_a_bubble_also_while_its_send_is_pending(tmp_path: Path) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 200).operator("aten::mm", 0, 50).operator("aten::mm", 150, 200)
    drawing.range("gloo:send", 60, 140).range("gloo:recv", 70, 140)
    step = step_of(drawing, tmp_path)
    assert (step.idle_by_cause.bubble_us, step.exposed_communication_us, step.idle_by_cause.host_us) == (70, 10, 20)


def test_a_receive_posted_early_does_not_turn_python_into_a_bubble(tmp_path: Path) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 200).operator("aten::mm", 0, 50).operator("aten::mm", 80, 150)
    drawing.operator("aten::mm", 180, 200).range("gloo:recv", 10, 170)
    causes = step_of(drawing, tmp_path).idle_by_cause
    assert (causes.host_us, causes.bubble_us) == (40, 20)


def test_recompute_counts_its_compute_and_its_exposed_communication(tmp_path: Path) -> None:
    drawing = _drawing().range("recompute", 205, 570)
    breakdown = breakdown_of(drawing, tmp_path)
    assert breakdown.steps[0].recompute_us == 140 + 170
    assert breakdown.steps[0].compute_by_class["recompute"] == 200
    assert breakdown.measure(breakdown.recompute_issue) == [365]


def test_sequence_parallel_functions_are_not_tp_where_tp_is_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = Drawing(on_cpu=True).step(1, 0, 100).operator("aten::mm", 0, 40)
    drawing.operator("_GatherFromSequenceParallelRegion", 40, 95).operator("c10d::_allgather_base_", 45, 50)
    drawing.range("gloo:all_gather", 50, 90, thread=GLOO_THREAD)
    assert set(step_of(drawing, tmp_path).communication_by_kind) == {"tp"}
    document = drawing.document()
    document["distributedInfo"]["pg_config"] = [{"pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 1}]
    monkeypatch.setattr(drawing, "document", lambda: document)
    assert set(step_of(drawing, tmp_path).communication_by_kind) == {"other"}


def test_a_gpu_job_recorded_without_its_device_is_no_cpu_job(tmp_path: Path) -> None:
    drawing = _drawing().call("cudaLaunchKernel", 0, 5)
    with pytest.raises(TraceError, match="no device events") as raised:
        breakdown_of(drawing, tmp_path)
    assert "CUDA" in raised.value.hint
