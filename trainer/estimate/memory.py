"""Peak memory by part and by pipeline rank, over columns: many settings of one model at once, one recipe as one row.

The peak of torch's allocator: what stays between steps (`state.py`), activations of the micro batches in flight
(`activations.py`, `schedule.py`), and the larger of the loss's tensors and one layer's backward. Shapes: N rows,
P pipeline ranks. Constants are `memory.csv`; the bound and how far an estimate is from what was measured, `bound.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainer.estimate.activations import kept, routed, saved_by_tensor
from trainer.estimate.bound import margin, unbalanced
from trainer.estimate.candidates import Candidates, Floats, Integers, one
from trainer.estimate.held import held_parameters
from trainer.estimate.memory_constants import constant
from trainer.estimate.schedule import in_flight
from trainer.estimate.state import state_bytes
from trainer.estimate.transients import backward_of_a_layer, logits, rebuilt
from trainer.recipe.schema import Recipe

GIB, MIB = 2.0**30, 2.0**20
ASSUMPTIONS = (
    "the peak is that of torch's allocator; CUDA context and NCCL's own buffers are outside_gib",
    "expert outputs are not kept: probabilities are applied inside the activation",
    "the point is for an even load of experts; upper_gib allows the imbalance",
)
ON_CPU = ("on CPUs activations take 2.2 times the fused form in fp32 and 3.4 times in bf16 (measured)",)


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """GiB. `by_part` adds up to the need of each pipeline rank; `peak_gib` is that of the hottest one, the bound's."""

    by_part: dict[str, Floats]  # [N, P], zero beyond a row's PP
    peak_gib: Floats  # [N]
    upper_gib: Floats  # [N]
    hottest: Integers  # [N], pipeline rank
    routed_gib: Floats  # [N], the part of the hottest rank that grows with its experts' load


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """GiB of the hottest rank. `by_part` adds up to `peak_gib`; `upper_gib` leaves room for what is not modelled."""

    by_part: dict[str, float]
    upper_gib: float
    hottest: dict[str, int]  # {"pp_rank": n}
    assumptions: tuple[str, ...] = field(default=ASSUMPTIONS)

    @property
    def peak_gib(self) -> float:
        return sum(self.by_part.values())


def memory_of(candidates: Candidates, *, imbalance: float | None = None) -> MemoryTable:
    """Memory of every row. `imbalance`: tokens of the hottest expert rank over the mean, for the upper bound."""
    parts, routed_bytes = _bytes_by_part(candidates)
    shape = (candidates.count, candidates.stages.exists.shape[1])
    exists = candidates.stages.exists
    by_part = {name: np.broadcast_to(np.where(exists, size, 0.0) / GIB, shape) for name, size in parts.items()}
    needed = sum(by_part.values(), np.zeros(shape))
    hottest = needed.argmax(axis=1)
    rows = np.arange(candidates.count)
    peak, routed_gib = needed[rows, hottest], np.broadcast_to(routed_bytes / GIB, shape)[rows, hottest]
    ratio = constant("imbalance") if imbalance is None else imbalance
    upper = peak + np.maximum(0.0, ratio - 1) * routed_gib * unbalanced(candidates)
    upper = upper * (1 + margin(candidates)) + constant("cpu_margin") * candidates.base.hardware.is_cpu
    return MemoryTable(by_part=by_part, peak_gib=peak, upper_gib=upper, hottest=hottest, routed_gib=routed_gib)


def estimate_memory(recipe: Recipe) -> MemoryEstimate:
    """The estimate for the pipeline rank that needs most; all its tensor, context and data ranks are alike."""
    found = memory_of(one(recipe))
    rank = int(found.hottest[0])
    return MemoryEstimate(
        by_part={name: float(sizes[0, rank]) for name, sizes in found.by_part.items()},
        upper_gib=float(found.upper_gib[0]),
        hottest={"pp_rank": rank},
        assumptions=ASSUMPTIONS + (ON_CPU if recipe.hardware.is_cpu else ()),
    )


def _bytes_by_part(candidates: Candidates) -> tuple[dict[str, Floats], Floats]:
    """(bytes by part, bytes of routed tokens among the activations), each [N, P]."""
    activations, routed_bytes, workspace = _activations(candidates)
    on_cpu = candidates.base.hardware.is_cpu
    loss = _loss(candidates)
    # The loss is over when the first layer runs backward; a CPU's factor was measured for the sum.
    beside = workspace if on_cpu else np.maximum(workspace - loss, 0.0)
    moving = {"activations": activations, "logits": loss, "workspace": beside}
    unfused = _unfused(candidates)
    state = state_bytes(candidates, held_parameters(candidates))
    parts = state | {name: size * unfused for name, size in moving.items()} | {"buffers": _buffers(candidates)}
    return parts, routed_bytes * unfused


def _unfused(candidates: Candidates) -> Floats:
    """What Megatron-Core's local layers keep on a CPU over the fused form, [N, 1] or []."""
    if not candidates.base.hardware.is_cpu:
        return np.ones(())
    fp32 = candidates.among("precision", "fp32")
    return np.where(fp32, constant("cpu_unfused_fp32"), constant("cpu_unfused_bf16"))[..., None]


def _activations(candidates: Candidates) -> tuple[Floats, Floats, Floats]:
    """(activations kept, those of routed tokens among them, one layer's backward) in bytes, each [N, P]."""
    stages, tokens = candidates.stages, candidates.tokens[..., None]
    model = candidates.base.architecture
    kinds = {False: stages.dense, True: stages.moe} if model.num_moe_experts else {False: stages.dense}
    last_kind = model.moe_layers[-1]
    kinds[last_kind] = kinds[last_kind] + stages.mtp
    layers = sum(kinds.values(), np.zeros(()))
    whole, inputs = _full_recompute(candidates, layers)
    everything = routed_part = workspace = np.zeros(stages.exists.shape)
    residual = np.zeros(())
    for is_moe, count in kinds.items():
        saved = saved_by_tensor(candidates, is_moe=is_moe)
        left = kept(candidates, saved)
        residual = saved["residual"]
        everything = everything + count * _total(left)
        routed_part = routed_part + count * routed(left)[..., None]
        moment = backward_of_a_layer(candidates, saved, is_moe=is_moe) + rebuilt(candidates, saved, left)
        workspace = np.maximum(workspace, (count > 0) * moment[..., None])
    share = whole / np.maximum(layers, 1.0) * _not_offloaded(candidates, layers)
    held = in_flight(candidates) * tokens
    kept_bytes = (share * everything + inputs * residual[..., None]) * held
    return kept_bytes, share * routed_part * held, workspace * tokens


def _total(tensors: dict[str, Floats]) -> Floats:
    return sum(tensors.values(), np.zeros(()))[..., None]


def _full_recompute(candidates: Candidates, layers: Floats) -> tuple[Floats, Floats]:
    """(layers whose activations are kept, layers whose input alone is kept) of one rank's, [N, P]."""
    full = candidates.among("recompute_granularity", "full")[..., None]
    block = candidates.among("recompute_method", "block")[..., None]
    count = np.minimum(candidates.number("recompute_num_layers", none=1.0)[..., None], layers)
    kept_whole = np.where(full, np.where(block, layers - count, 0.0), layers)
    inputs = np.where(block, count, layers / np.maximum(count, 1.0))
    return kept_whole, np.where(full, inputs, 0.0)


def _not_offloaded(candidates: Candidates, layers: Floats) -> Floats:
    """Share of the layers whose activations are not moved to the host whole."""
    moved = np.where(candidates.on("cpu_offloading"), candidates.number("cpu_offloading_num_layers"), 0.0)
    return np.maximum(0.0, 1 - moved[..., None] / np.maximum(layers, 1.0))


def _loss(candidates: Candidates) -> Floats:
    """Bytes of the last stage's vocabulary-wide tensors, [N, P]."""
    at_loss, of_others = logits(candidates)
    heads = candidates.base.architecture.mtp_num_layers or 0
    return candidates.stages.heads * ((at_loss + heads * of_others) * candidates.tokens)[..., None]


def _buffers(candidates: Candidates) -> Floats:
    """Bytes that live as long as the process: workspaces of the matrix products, [N, 1] or []."""
    if candidates.base.hardware.is_cpu:
        return np.full((1, 1), constant("cpu_runtime") * GIB)
    grouped = candidates.on("moe_grouped_gemm") * constant("grouped_gemm_streams")
    streams = np.where(candidates.among("transformer_impl", "local"), 0.0, 1.0 + grouped)
    return (streams * constant("gemm_workspace") + constant("blas_workspace"))[..., None] * MIB
