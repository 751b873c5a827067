"""Recompute as time: every form of checkpointing drawn by hand, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzers.drawing import ALL_TO_ALL, BACKWARD, DISPATCH, GEMM, MAIN, Drawing
from tests.analyzers.taken_apart import breakdown_of

NODE = "autograd::engine::evaluate_function: "
STEP_US = 1000


def _launching(drawing: Drawing, *moments: float, thread: int = BACKWARD) -> Drawing:
    """Draws kernels of 1, 2, 4, ... us, one for each moment of launch, run later: their sum identifies them."""
    for k, moment in enumerate(moments):
        start = 500 + 50 * k
        drawing.kernel(GEMM, start, start + 2**k, launched=moment, thread=thread)
    return drawing


def _recompute(drawing: Drawing, folder: Path) -> float:
    (step,) = breakdown_of(drawing.step(1, 0, STEP_US), folder).steps
    assert step.compute_by_class.get("recompute", 0.0) == step.recompute_us
    return step.recompute_us


def _node(name: str, start: float, end: float, drawing: Drawing, sequence: int | None = 3) -> Drawing:
    drawing.operator(NODE + name, start, end, BACKWARD, sequence)
    return drawing.operator(name, start + 1, end - 1, BACKWARD, sequence)


def test_a_saved_tensors_hook_runs_the_forward_again_inside_any_backward_node(tmp_path: Path) -> None:
    # torch.utils.checkpoint(use_reentrant=False): the first node of the segment unpacks, then continues
    drawing = _node("MmBackward0", 10, 200, Drawing())
    drawing.operator("aten::linear", 20, 60, BACKWARD, 40).operator("aten::addmm", 25, 55, BACKWARD, 40)
    drawing.operator("aten::gelu", 80, 100, BACKWARD, 41).operator("aten::mm", 120, 140, BACKWARD)
    drawing.operator("aten::linear", 0, 9, MAIN, 3)
    # before it, inside it, between its operators, in the plain backward after it
    assert _recompute(_launching(drawing, 15, 30, 70, 130), tmp_path) == 2 + 4


def test_a_hook_on_a_gradient_that_runs_functions_again_is_recompute(tmp_path: Path) -> None:
    # Megatron-Core's CheckpointWithoutOutput: functions of its own, no aten operator but inside of them
    drawing = _node("_LinearBackward", 10, 200, Drawing())
    drawing.operator("_LayerNormLinear", 20, 60, BACKWARD, 40).operator("aten::mm", 30, 40, BACKWARD)
    drawing.operator("aten::mm", 90, 110, BACKWARD)
    assert _recompute(_launching(drawing, 35, 100), tmp_path) == 1


@pytest.mark.parametrize("function", ["CheckpointFunctionBackward", "_CheckpointFunctionBackward"])
@pytest.mark.parametrize("sequence", [None, 40])
def test_a_checkpoint_functions_backward_is_recompute_up_to_the_nested_pass(
    tmp_path: Path, function: str, sequence: int | None
) -> None:
    # torch (reentrant), Megatron-Core and DeepSpeed; Transformer Engine. Old traces have no sequence numbers.
    drawing = _node(function, 10, 300, Drawing()).operator("aten::linear", 20, 60, BACKWARD, sequence)
    _node("MmBackward0", 100, 250, drawing).operator("aten::mm", 120, 140, BACKWARD)
    assert _recompute(_launching(drawing, 30, 130, 270), tmp_path) == 1


def test_a_checkpoint_in_a_checkpoint_is_recompute_too(tmp_path: Path) -> None:
    drawing = _node("CheckpointFunctionBackward", 10, 400, Drawing())
    drawing.operator("aten::linear", 20, 60, BACKWARD, 40)
    _node("MmBackward0", 100, 350, drawing).operator("aten::linear", 120, 160, BACKWARD, 50)
    drawing.operator("aten::mm", 200, 220, BACKWARD)
    assert _recompute(_launching(drawing, 30, 130, 210), tmp_path) == 1 + 2


def test_plain_backward_is_no_recompute(tmp_path: Path) -> None:
    drawing = _node("MmBackward0", 10, 100, Drawing()).operator("aten::mm", 20, 60, BACKWARD)
    _node("_AllToAllBackward", 110, 200, drawing).operator("_AllToAll", 120, 150, BACKWARD)
    _node("CompiledFunctionBackward", 210, 300, drawing)
    assert _recompute(_launching(drawing, 30, 130, 250), tmp_path) == 0


def test_forward_on_any_thread_is_not_recompute(tmp_path: Path) -> None:
    drawing = Drawing().operator("aten::linear", 0, 60, MAIN, 1)
    drawing.operator("aten::linear", 0, 60, BACKWARD, 2)  # the thread evaluates nodes too, but not now
    _node("MmBackward0", 100, 200, drawing)
    assert _recompute(_launching(_launching(drawing, 30), 40, thread=MAIN), tmp_path) == 0


def test_gradients_of_gradients_leave_recompute_unsaid(tmp_path: Path) -> None:
    # create_graph=True: autograd records what backward computes
    drawing = _node("MmBackward0", 10, 100, Drawing()).operator("aten::mm", 20, 60, BACKWARD, 7)
    drawing.operator("aten::as_strided", 22, 24, BACKWARD)  # nested in an operator that autograd recorded
    _node("MulBackward0", 110, 200, drawing).operator("aten::mul", 120, 150, BACKWARD)
    assert _recompute(_launching(drawing, 30, 130), tmp_path) == 0


def test_communication_done_again_counts_as_well(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, STEP_US)
    _node("MmBackward0", 10, 200, drawing).operator("FusedDispatch", 20, 60, BACKWARD, 40)
    drawing.operator("aten::mm", 95, 110, BACKWARD)
    drawing.kernel(DISPATCH, 300, 330, launched=30, thread=BACKWARD)
    drawing.kernel(ALL_TO_ALL, 400, 450, launched=100, thread=BACKWARD)
    (step,) = breakdown_of(drawing, tmp_path).steps
    assert (step.recompute_us, step.exposed_communication_us) == (30, 80)


@pytest.mark.parametrize("thread", [MAIN, BACKWARD])
@pytest.mark.parametrize(
    ("outer", "inner", "again"),
    [
        ("backward", "forward", True),
        ("Backward", "fwd", True),
        ("loss.backward()", "TransformerLayer.forward", True),
        ("backward", "recompute", True),
        ("backward", "attention", False),
        ("forward_backward", "forward", False),
        ("forward", "forward", False),
        ("step", "forward", False),
    ],
)
def test_a_forward_range_inside_a_backward_range_is_recompute(
    tmp_path: Path, thread: int, outer: str, inner: str, again: bool
) -> None:
    drawing = Drawing().range(outer, 10, 300).range(inner, 50, 100, thread)
    assert _recompute(_launching(drawing, 70, 150, thread=thread), tmp_path) == (1 if again else 0)


def test_ranges_that_follow_each_other_are_no_recompute(tmp_path: Path) -> None:
    drawing = Drawing().range("forward", 0, 50).range("backward", 50, 200).range("forward", 200, 250)
    drawing.range("forward", 190, 210, BACKWARD)  # covers only half of it
    assert _recompute(_launching(_launching(drawing, 220, thread=MAIN), 195), tmp_path) == 0


def test_operators_written_as_ranges_tell_as_operators_do(tmp_path: Path) -> None:
    # torch.autograd.profiler.emit_nvtx
    drawing = Drawing().range(NODE + "MmBackward0, seq = 3, op_id = 9", 10, 200, BACKWARD)
    drawing.range("MmBackward0, seq = 3, op_id = 10", 12, 198, BACKWARD)
    drawing.range("aten::linear, seq = 40, op_id = 11", 20, 60, BACKWARD)
    drawing.range("aten::mm, op_id = 12", 100, 140, BACKWARD)
    assert _recompute(_launching(drawing, 30, 120), tmp_path) == 1


def test_work_issued_again_on_a_rank_on_cpus_is_recompute(tmp_path: Path) -> None:
    # on CPUs the thread that calls backward evaluates it
    drawing = Drawing(on_cpu=True).step(1, 0, STEP_US).operator("aten::mm", 0, 400, MAIN, 1)
    drawing.operator(NODE + "MmBackward0", 400, 900, MAIN, 3).operator("MmBackward0", 401, 899, MAIN, 3)
    drawing.operator("aten::mm", 410, 600, MAIN, 40).operator("aten::mm", 600, 890, MAIN)
    breakdown = breakdown_of(drawing, tmp_path)
    assert breakdown.measure(breakdown.recompute_issue) == [190]
    assert breakdown.steps[0].recompute_us == 190
    assert breakdown.steps[0].compute_by_class == {"recompute": 190, "gemm": 400 + 498 - 190}
