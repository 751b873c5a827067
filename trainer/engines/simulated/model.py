"""One training step of a recipe on the simulated cluster, as the work one rank issues in order.

A step has micro batches times layers of the same shape; a few slices stand for all of them, each as long as the
layers it stands for, so that a trace stays small. What a knob does to a step is said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trainer.engines.simulated.machine import DISPATCHERS, RECOMPUTED, Machine
from trainer.estimate.memory.estimate import estimate_memory
from trainer.model.flops import model_flops_per_token
from trainer.recipe import Recipe

SLICES_OF_MICROBATCHES = 2
SLICES_OF_LAYERS = 3
# knob -> its value at rest, and the share of host time per layer that is left when it is set otherwise
LAUNCHES_LEFT: dict[str, tuple[object, float]] = {
    "moe_permute_fusion": (False, 0.9),
    "moe_router_fusion": (False, 0.9),
    "cuda_graph_impl": ("none", 0.35),
    "cpu_affinity": ("none", 0.85),
}
ATTENTION_SHARE = 0.4  # of a layer's compute; the rest is the experts'
GIB = 2**30


class Stream(StrEnum):
    COMPUTE = "compute"  # everything that the next kernel waits for
    SIDE = "side"  # communication that runs beside it


@dataclass(frozen=True, kw_only=True)
class Op:
    """Work on one stream: a kernel of `device_us` that costs the host `host_us` to issue."""

    kernel: str
    device_us: float
    host_us: float
    stream: Stream = Stream.COMPUTE
    ranges: tuple[str, ...] = ()  # outermost first
    group: str | None = None  # process group of a collective


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one slice costs in forward, already multiplied by the layers it stands for (microseconds)."""

    attention_us: float
    experts_us: float
    dispatch_us: float
    tp_us: float
    cp_us: float
    host_us: float
    ep_hidden: float  # share of dispatch and combine that runs beside compute


def step_of(recipe: Recipe, machine: Machine) -> list[Op]:
    """Everything one rank does in a step, in the order in which its host issues it."""
    piece, slices = _slice(recipe, machine)
    microbatches = min(recipe.num_microbatches, SLICES_OF_MICROBATCHES)
    layers = slices // microbatches
    ops: list[Op] = []
    for _ in range(microbatches):
        ops += [op for _ in range(layers) for op in _forward(piece, "forward_microbatch")]
        ops += [op for _ in range(layers) for op in _backward(recipe, piece)]
    bubble_us = _bubble(recipe) * sum(op.device_us for op in ops if op.stream is Stream.COMPUTE)
    send_recv = Op(
        kernel="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        device_us=bubble_us,
        host_us=machine.launch_us,
        ranges=("pp_send_recv",),
        group="PIPELINE_MODEL_PARALLEL_GROUP",
    )
    pause = [_host_pause(machine)] if machine.gc_us and not recipe.knob("manual_gc") else []
    return [*([send_recv] if bubble_us else []), *ops, *pause, *_end_of_step(recipe, machine)]


def _slice(recipe: Recipe, machine: Machine) -> tuple[Slice, int]:
    layers = max(1, recipe.architecture.num_layers // recipe.knob("pipeline_model_parallel_size"))
    slices = min(recipe.num_microbatches, SLICES_OF_MICROBATCHES) * min(layers, SLICES_OF_LAYERS)
    weight = layers * recipe.num_microbatches / slices
    compute_us = _compute_us(recipe, machine) / layers
    piece = Slice(
        attention_us=weight * compute_us * ATTENTION_SHARE,
        experts_us=weight * compute_us * (1 - ATTENTION_SHARE) / _expert_efficiency(recipe, machine),
        dispatch_us=weight * _dispatch_us(recipe, machine),
        tp_us=weight * _tp_us(recipe, machine),
        cp_us=weight * _cp_us(recipe, machine),
        host_us=weight * _launches(recipe, machine) * machine.launch_us,
        ep_hidden=_ep_hidden(recipe, machine),
    )
    return piece, slices


def _tokens(recipe: Recipe) -> float:
    """Of one micro batch on one rank: TP (with sequence parallel) and CP divide the sequence."""
    ranks = recipe.knob("tensor_model_parallel_size") * recipe.knob("context_parallel_size")
    return float(recipe.training.micro_batch_size * recipe.training.seq_length / ranks)


def _compute_us(recipe: Recipe, machine: Machine) -> float:
    """Forward of one micro batch through a stage at full GEMM efficiency; FP8 helps where GEMMs are long."""
    flops = model_flops_per_token(recipe.architecture, recipe.training.seq_length) / 3.0
    stage = flops * _tokens(recipe) / recipe.knob("pipeline_model_parallel_size")
    fp8_overhead = 1.3 if recipe.training.precision not in ("fp32", "bf16") else 1.0
    return float(fp8_overhead * stage / (machine.tflops(recipe) * machine.gemm_efficiency * 1e6))


def _expert_efficiency(recipe: Recipe, machine: Machine) -> float:
    """Of the experts' GEMMs: few rows an expert, or one kernel an expert, leave the device underused."""
    experts = recipe.architecture.num_moe_experts
    if experts is None:
        return 1.0
    ep = recipe.knob("expert_model_parallel_size")
    rows = ep * _tokens(recipe) * recipe.architecture.moe_router_topk / experts
    filled = rows / (rows + (machine.cpu_half_rows if recipe.hardware.is_cpu else machine.half_rows))
    return float(filled * (1.0 if recipe.knob("moe_grouped_gemm") else 0.7))


def _dispatch_us(recipe: Recipe, machine: Machine) -> float:
    """One dispatch (or combine) of a layer's tokens: what leaves the rank, over the slowest link it crosses."""
    ep = recipe.knob("expert_model_parallel_size")
    if recipe.architecture.num_moe_experts is None or ep == 1:
        return 0.0
    rows = _tokens(recipe) * recipe.architecture.moe_router_topk
    sent_gb = rows * recipe.architecture.hidden_size * 2 * (ep - 1) / ep / 1e9
    kind = recipe.knob("moe_token_dispatcher_type")
    kind = recipe.knob("moe_flex_dispatcher_backend") if kind == "flex" else kind
    inside, across = DISPATCHERS.get(kind, (1.0, 1.0))
    factor = inside if machine.inside_domain(recipe, ep) else across
    return float(factor * (machine.collective_us + sent_gb / machine.bandwidth_gb_s(recipe, ep) * 1e6))


def _ep_hidden(recipe: Recipe, machine: Machine) -> float:
    if recipe.knob("overlap_moe_expert_parallel_comm"):
        return min(1.0, machine.hidden_ep + (0.1 if recipe.knob("delay_wgrad_compute") else 0.0))
    return 0.15 if recipe.knob("moe_shared_expert_overlap") else 0.0


def _tp_us(recipe: Recipe, machine: Machine) -> float:
    """Two all-gathers and two reduce-scatters of the hidden states a layer."""
    tp = recipe.knob("tensor_model_parallel_size")
    if tp == 1:
        return 0.0
    moved_gb = _tokens(recipe) * (tp - 1) * recipe.architecture.hidden_size * 2 / 1e9
    one = machine.collective_us + moved_gb / machine.bandwidth_gb_s(recipe, tp) * 1e6
    return float(4 * one * (0.5 if recipe.knob("tp_comm_overlap") else 1.0))


def _cp_us(recipe: Recipe, machine: Machine) -> float:
    """Keys and values of the other ranks' pieces."""
    cp, tp = recipe.knob("context_parallel_size"), recipe.knob("tensor_model_parallel_size")
    if cp == 1:
        return 0.0
    moved_gb = _tokens(recipe) * (cp - 1) * recipe.architecture.hidden_size * 2 / 1e9
    return float(cp * machine.collective_us + moved_gb / machine.bandwidth_gb_s(recipe, cp * tp) * 1e6)


def _launches(recipe: Recipe, machine: Machine) -> float:
    """Kernels a layer's forward launches."""
    launches = machine.launches_per_layer
    experts = recipe.architecture.num_moe_experts
    if experts and not recipe.knob("moe_grouped_gemm"):
        launches += 4 * experts / recipe.knob("expert_model_parallel_size")
    for knob, (at_rest, factor) in LAUNCHES_LEFT.items():
        launches *= factor if recipe.knob(knob) != at_rest else 1.0
    return launches


def _forward(piece: Slice, around: str) -> Iterator[Op]:
    share = piece.host_us / 5
    yield _gemm("attention", piece.attention_us, share, around)
    yield from _collective("TENSOR_MODEL_PARALLEL_GROUP", "AllGather", piece.tp_us, around, "attention")
    yield from _collective("CONTEXT_PARALLEL_GROUP", "SendRecv", piece.cp_us, around, "attention")
    yield _gemm("router", 0.02 * piece.experts_us, share, around)
    yield from _dispatch("dispatch", piece, share, around)
    yield _gemm("experts", 0.98 * piece.experts_us, share, around)
    yield from _dispatch("combine", piece, share, around)


def _backward(recipe: Recipe, piece: Slice) -> Iterator[Op]:
    """Twice the forward's compute, its communication once more, and what is computed again before."""
    yield from _again(recipe, piece)
    share = piece.host_us * 1.5 / 5
    yield from _dispatch("combine", piece, share, "backward_microbatch")
    yield _gemm("experts", 2 * piece.experts_us, share, "backward_microbatch")
    yield from _dispatch("dispatch", piece, share, "backward_microbatch")
    yield _gemm("attention", 2 * piece.attention_us, 2 * share, "backward_microbatch")
    yield from _collective("TENSOR_MODEL_PARALLEL_GROUP", "AllGather", piece.tp_us, "backward_microbatch", "attention")
    yield from _collective("CONTEXT_PARALLEL_GROUP", "SendRecv", piece.cp_us, "backward_microbatch", "attention")


def _again(recipe: Recipe, piece: Slice) -> Iterator[Op]:
    granularity = recipe.knob("recompute_granularity")
    if granularity is None:
        return
    again = ("backward_microbatch", "recompute")
    if granularity == "full":
        yield from _forward(piece, "/".join(again))
        return
    modules = recipe.knob("recompute_modules") or ("core_attn",)
    share = sum(RECOMPUTED.get(module, 0.05) for module in modules)
    compute_us = share * (piece.attention_us + piece.experts_us)
    yield _gemm("experts", compute_us, share * piece.host_us, "/".join(again))
    if "moe" in modules:
        yield from _dispatch("dispatch", piece, 0.0, "/".join(again))


def _gemm(name: str, device_us: float, host_us: float, around: str) -> Op:
    kernel = {
        "attention": "flash_fwd_kernel<Flash_fwd_kernel_traits>",
        "router": "_sort_chunks_by_map_kernel(permute)",
        "experts": "cutlass::Kernel2<GroupedGemm_bf16>",
    }[name]
    return Op(kernel=kernel, device_us=device_us, host_us=host_us, ranges=(*around.split("/"), name))


def _collective(group: str, what: str, device_us: float, around: str, inside: str) -> Iterator[Op]:
    if device_us:
        yield Op(
            kernel=f"ncclDevKernel_{what}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            device_us=device_us,
            host_us=0.0,
            ranges=(*around.split("/"), inside),
            group=group,
        )


def _dispatch(name: str, piece: Slice, host_us: float, around: str) -> Iterator[Op]:
    """The all-to-all, in two when part of it runs beside compute."""
    for stream, share in ((Stream.SIDE, piece.ep_hidden), (Stream.COMPUTE, 1.0 - piece.ep_hidden)):
        if share * piece.dispatch_us > 0:
            yield Op(
                kernel="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                device_us=share * piece.dispatch_us,
                host_us=share * host_us,
                stream=stream,
                ranges=(*around.split("/"), name),
                group="EXPERT_MODEL_PARALLEL_GROUP",
            )


def _bubble(recipe: Recipe) -> float:
    """Idle share of a rank's work: (PP-1)/(micro batches times VPP)."""
    stages = recipe.knob("pipeline_model_parallel_size")
    chunks = recipe.knob("virtual_pipeline_model_parallel_size") or 1
    return float((stages - 1) / (recipe.num_microbatches * chunks))


def _host_pause(machine: Machine) -> Op:
    return Op(kernel="", device_us=0.0, host_us=machine.gc_us, ranges=("gc",))


def _end_of_step(recipe: Recipe, machine: Machine) -> Iterator[Op]:
    """Gradients over the data-parallel ranks, the optimizer, parameters back."""
    parts = estimate_memory(recipe).by_part
    state_gb = (parts.get("master_weights", 0.0) + parts.get("optimizer", 0.0)) * GIB / 1e9
    moved_gb = parts.get("gradients", 0.0) * GIB / 1e9
    replicas = recipe.data_parallel_size * recipe.knob("context_parallel_size")
    if replicas > 1:
        one_way_us = moved_gb / machine.bandwidth_gb_s(recipe, recipe.world_size) * 1e6
        yield from _data_parallel("gradient_sync", one_way_us, recipe.knob("overlap_grad_reduce"), machine)
        yield from _data_parallel("param_gather", one_way_us, recipe.knob("overlap_param_gather"), machine)
    yield Op(
        kernel="multi_tensor_apply_kernel<FusedAdam>",
        device_us=_optimizer_us(recipe, machine, state_gb),
        host_us=20 * machine.launch_us,
        ranges=("optimizer",),
    )


def _data_parallel(name: str, one_way_us: float, overlapped: bool, machine: Machine) -> Iterator[Op]:
    exposed = one_way_us * (1.0 - machine.hidden_dp) if overlapped else one_way_us
    yield Op(
        kernel="ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        device_us=machine.collective_us + exposed,
        host_us=machine.launch_us,
        ranges=(name,),
        group="DATA_PARALLEL_GROUP_WITH_CP",
    )


def _optimizer_us(recipe: Recipe, machine: Machine, state_gb: float) -> float:
    """State is read and written once; the offloaded part on the host."""
    device_gb_s = 2000.0 if recipe.cluster.gpu != "cpu" else 10.0
    on_host = recipe.knob("optimizer_offload_fraction") if recipe.knob("optimizer_cpu_offload") else 0.0
    return float(state_gb * 2e6 * ((1 - on_host) / device_gb_s + on_host / machine.host_adam_gb_s))
