"""Checks the kind of a communication, by its arguments, its surroundings, and its place among the grouped GEMMs."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read
from tests.analyzers.drawing import ALL_TO_ALL, BACKWARD, DISPATCH, GEMM, MAIN, Drawing
from tests.analyzers.taken_apart import step_of

GROUPED_GEMM = "_grouped_gemm_kernel"
ATTENTION = "void flash::flash_fwd_kernel<Traits>(flash::Flash_fwd_params)"
PERMUTE = "_permute_kernel"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(x)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(x)"
EXPERTS = "EXPERT_MODEL_PARALLEL_GROUP"
COMMUNICATION_STREAM, OTHER_STREAM = 20, 30


def _kinds(drawing: Drawing, folder: Path) -> dict[str, float]:
    return {kind: time.busy_us for kind, time in step_of(drawing, folder).communication_by_kind.items()}


def _in_a_row(
    names: list[str | tuple[str, int]], *, group: str | None = None, thread: int = MAIN, collective: str = "all_to_all"
) -> Drawing:
    """Draws kernels launched and run one after the other, 10 us each, communications k us: 1, 2, ..., to distinguish
    them."""
    drawing = Drawing().step(1, 0, 20.0 * len(names) + 20)
    communications = 0
    for k, one in enumerate(names):
        name, stream = one if isinstance(one, tuple) else (one, COMMUNICATION_STREAM)
        is_communication = name.startswith("nccl")
        communications += is_communication
        start = 20.0 * k + 10
        arguments: dict[str, Any] = {}
        if group and is_communication:
            arguments = {"Process Group Description": group, "Collective name": collective}
        drawing.kernel(
            name,
            start,
            start + (communications if is_communication else 10),
            launched=start - 5,
            stream=stream if is_communication else 7,
            thread=thread,
            **arguments,
        )
    return drawing


LAYER: list[str | tuple[str, int]] = [
    ATTENTION,
    GEMM,
    ALL_TO_ALL,  # 1: tokens
    ALL_TO_ALL,  # 2: probabilities
    PERMUTE,
    GROUPED_GEMM,
    PERMUTE,
    GROUPED_GEMM,
    ALL_TO_ALL,  # 3: back
]


@pytest.mark.parametrize("thread", [MAIN, BACKWARD])
@pytest.mark.parametrize("group", [EXPERTS, None])
def test_around_the_grouped_gemms_the_first_is_dispatch_and_the_second_combine(
    tmp_path: Path, group: str | None, thread: int
) -> None:
    assert _kinds(_in_a_row(LAYER, group=group, thread=thread), tmp_path) == {"ep_dispatch": 3, "ep_combine": 3}


def test_the_pair_of_each_layer_is_distinguished(tmp_path: Path) -> None:
    assert _kinds(_in_a_row(LAYER * 3, group=EXPERTS), tmp_path) == {
        "ep_dispatch": 1 + 2 + 4 + 5 + 7 + 8,
        "ep_combine": 3 + 6 + 9,
    }


@pytest.mark.parametrize(
    "names",
    [
        [ALL_TO_ALL, ATTENTION, ALL_TO_ALL],  # sequence parallelism
        [ALL_TO_ALL, GEMM, ALL_TO_ALL],
        [ALL_TO_ALL, GROUPED_GEMM, GEMM, ALL_TO_ALL],  # another product ends the pair
        [ALL_TO_ALL, GROUPED_GEMM],  # a pair cut by the end of the trace
        [GROUPED_GEMM, ALL_TO_ALL],
        [ALL_TO_ALL, GROUPED_GEMM, ALL_TO_ALL, GROUPED_GEMM],  # in the middle it could be either
        [(ALL_TO_ALL, COMMUNICATION_STREAM), GROUPED_GEMM, (ALL_TO_ALL, OTHER_STREAM)],  # two groups
        [ALL_TO_ALL, ALL_TO_ALL],
    ],
)
def test_without_a_pair_around_a_grouped_gemm_an_all_to_all_stays_one(
    tmp_path: Path, names: list[str | tuple[str, int]]
) -> None:
    assert set(_kinds(_in_a_row(names, group=EXPERTS), tmp_path)) == {"all_to_all"}


def test_point_to_point_messages_next_to_the_experts_are_no_combine(tmp_path: Path) -> None:
    names: list[str | tuple[str, int]] = [*LAYER, (ALL_TO_ALL, OTHER_STREAM)]
    assert _kinds(_in_a_row(names), tmp_path) == {"ep_dispatch": 3, "ep_combine": 3, "other": 4}


def test_gathered_tokens_are_dispatch_and_reduced_ones_combine(tmp_path: Path) -> None:
    names: list[str | tuple[str, int]] = [GEMM, ALL_GATHER, GROUPED_GEMM, REDUCE_SCATTER]
    drawing = _in_a_row(names, group="EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", collective="x")
    assert _kinds(drawing, tmp_path) == {"ep_dispatch": 1, "ep_combine": 2}


def test_counts_in_the_experts_group_are_notification(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100)
    arguments: dict[str, Any] = {"Process Group Description": EXPERTS, "Collective name": "_allgather_base"}
    drawing.kernel(ALL_GATHER, 10, 15, launched=5, dtype="Long", **arguments)
    drawing.kernel(ALL_GATHER, 20, 30, launched=6, dtype="BFloat16", **arguments)
    assert _kinds(drawing, tmp_path) == {"ep_notify": 5, "other": 10}


def test_the_gradient_of_dispatch_is_a_combine_by_operators_and_ranges(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 400)
    drawing.operator("FusedDispatch", 0, 10).kernel(ALL_TO_ALL, 20, 21, launched=5)
    drawing.operator("FusedDispatchBackward", 30, 40).kernel(ALL_TO_ALL, 50, 52, launched=35)
    drawing.range("moe_combine backward", 60, 70).kernel(ALL_TO_ALL, 80, 84, launched=65)
    drawing.range("moe_dispatch backward", 90, 99).kernel(ALL_TO_ALL, 120, 128, launched=95)
    assert _kinds(drawing, tmp_path) == {"ep_dispatch": 1 + 4, "ep_combine": 2 + 8}


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "dp"),
        ("EMBEDDING_GROUP", "pp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "other"),
        ("MODEL_PARALLEL_GROUP", "other"),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "other"),
        ("mesh_tp", "tp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_dp_shard_in_ep", "dp"),
        ("mesh_cp", "cp"),
        ("undefined", "other"),
    ],
)
def test_reductions_are_what_their_process_group_is_for(tmp_path: Path, group: str, kind: str) -> None:
    arguments: dict[str, Any] = {"Process Group Description": group, "Collective name": "allreduce"}
    drawing = Drawing().step(1, 0, 100).kernel(ALL_REDUCE, 50, 80, launched=5, **arguments)
    assert set(_kinds(drawing, tmp_path)) == {kind}


@pytest.mark.parametrize("collective", ["send", "recv"])
def test_a_send_or_a_receive_is_the_pipelines_unless_its_group_or_operator_says_else(
    tmp_path: Path, collective: str
) -> None:
    arguments: dict[str, Any] = {"Process Group Description": "default_pg", "Collective name": collective}
    drawing = Drawing().step(1, 0, 100).kernel(ALL_TO_ALL, 50, 80, launched=5, **arguments)
    assert set(_kinds(drawing, tmp_path)) == {"pp"}
    drawing.operator("AttnFuncWithCPAndKVP2P", 0, 20)
    assert set(_kinds(drawing, tmp_path)) == {"cp"}


def test_a_message_with_a_source_and_a_destination_is_the_pipelines(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"Process Group Description": "undefined", "Collective name": "coalesced"}
    drawing = Drawing().step(1, 0, 100)
    peers: dict[str, Any] = {**arguments, "Src Rank": 0, "Dst Rank": 1}
    drawing.kernel(ALL_TO_ALL, 50, 80, launched=5, **peers).kernel(ALL_TO_ALL, 80, 90, launched=6, **arguments)
    drawing.kernel(BROADCAST, 90, 95, launched=7, **peers)
    assert _kinds(drawing, tmp_path) == {"pp": 30, "other": 15}


@pytest.mark.parametrize(
    ("where", "name", "kernel", "kind"),
    [
        ("range", "FSDP::all_gather (layers.3)", ALL_GATHER, "dp"),
        ("range", "FSDP::post_backward_reduce", REDUCE_SCATTER, "dp"),
        ("range", "PartitionedParameterCoordinator.fetch_sub_module", ALL_GATHER, "dp"),
        ("range", "transformer_engine.AttnFuncWithCPAndKVP2P.forward", ALL_TO_ALL, "cp"),
        ("range", "Optimizer.step#ZeroRedundancyOptimizer.step", ALL_GATHER, "dp"),
        ("range", "Optimizer.step#AdamW.step", ALL_REDUCE, "other"),
        ("range", "DistributedDataParallel.forward", BROADCAST, "dp"),
        ("range", "DistributedDataParallel.forward", ALL_TO_ALL, "other"),
        ("operator", "CompiledFunctionBackward", ALL_REDUCE, "dp"),
        ("operator", "CompiledFunctionBackward", ALL_GATHER, "other"),
        ("operator", "_LayerNormLinear", ALL_GATHER, "tp"),
        ("operator", "_LinearBackward", REDUCE_SCATTER, "tp"),
        ("operator", "_SeqAllToAll", ALL_TO_ALL, "cp"),
        ("operator", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", ALL_REDUCE, "dp"),
    ],
)
def test_ranges_and_operators_of_frameworks_give_the_kind(
    tmp_path: Path, where: str, name: str, kernel: str, kind: str
) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(kernel, 50, 80, launched=5)
    (drawing.range if where == "range" else drawing.operator)(name, 0, 10)
    assert set(_kinds(drawing, tmp_path)) == {kind}


def test_a_collective_of_the_compiled_graph_itself_is_no_gradient_hooks(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(ALL_REDUCE, 50, 80, launched=5)
    drawing.operator("CompiledFunctionBackward", 0, 20).operator("_c10d_functional::all_reduce", 2, 10)
    assert set(_kinds(drawing, tmp_path)) == {"other"}


def test_a_kernel_that_names_itself_needs_no_surroundings(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).range("combine", 0, 10).kernel(DISPATCH, 50, 80, launched=5)
    assert set(_kinds(drawing, tmp_path)) == {"ep_dispatch"}


NAMES = (ALL_TO_ALL, ALL_GATHER, GROUPED_GEMM, GEMM, ATTENTION, PERMUTE, DISPATCH, "my_secret_kernel")
KERNELS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 30), st.floats(0.001, 9.999), st.integers(0, 2)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=25)
@given(KERNELS, st.randoms(use_true_random=False))
def test_kinds_classes_and_sums_do_not_depend_on_the_order_of_events(
    kernels: list[tuple[str, int, float, int]], chance: random.Random
) -> None:
    drawing = Drawing().step(1, 0, 1000)
    for name, moment, took, stream in kernels:  # many are launched at the same moment
        drawing.kernel(name, 100 + moment, 100 + moment + took, launched=moment, stream=stream)
    with tempfile.TemporaryDirectory() as folder:
        ordered = _report(drawing, Path(folder))
        chance.shuffle(drawing.events)
        assert _report(drawing, Path(folder)) == ordered


def _report(drawing: Drawing, folder: Path) -> bytes:
    (timeline,) = read(drawing.write(folder))
    return msgspec.json.encode(break_down(timeline).report())
