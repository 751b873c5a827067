"""Peak memory by part and by pipeline rank, over columns: many settings of one model at once, one recipe as one row.

The peak of torch's allocator: what stays between steps (`state.py`), activations of the micro batches in flight
(`activations.py`, `in_flight.py`), the larger of the loss's tensors and one layer's backward (`transients.py`), and
buffers. Shapes: N rows, P pipeline ranks. Constants are in `memory.csv`; `bound.py` has the upper bound and the errors
against measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainer.estimate.candidates import Candidates, Floats, Integers, one
from trainer.estimate.held import held_parameters
from trainer.estimate.learned import NO_MEMORY, LearnedMemory
from trainer.estimate.memory.bound import most_load, never_measured, unbalanced, upper_gib
from trainer.estimate.memory.buffers import buffer_bytes, outside_bytes
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.in_flight import activation_bytes
from trainer.estimate.memory.state import state_bytes, step_bytes
from trainer.estimate.memory.transients import logits
from trainer.recipe.schema import Recipe

GIB = 2.0**30
RESTING = ("weights", "gradients", "master_weights", "optimizer", "buffers")  # parts that stay between steps
ASSUMPTIONS = (
    "the peak is that of torch's allocator; CUDA context and NCCL's own buffers come on top",
    "expert outputs are not kept: probabilities are applied inside the activation",
    "without forced balance of the experts the peak is for "
    f"{constant('expected_imbalance'):g} times the mean load, the upper bound for {constant('imbalance'):g}",
)
ON_CPU = (
    f"on CPUs activations take {constant('cpu_unfused_fp32'):g} times the fused form in fp32 and "
    f"{constant('cpu_unfused_bf16'):g} times in bf16 (measured)",
)


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """Memory of every row, GiB.

    `by_part` adds up to the need of each pipeline rank; `peak_gib` and `upper_gib` are those of the hottest rank.
    """

    by_part: dict[str, Floats]  # [N, P], zero beyond a row's PP
    peak_gib: Floats  # [N]
    upper_gib: Floats  # [N]
    hottest: Integers  # [N], pipeline rank
    routed_gib: Floats  # [N, P], memory of routed tokens at an even load
    outside_gib: Floats  # [N], memory outside torch's allocator: context, NCCL, the dispatcher's buffers


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of the hottest rank, GiB.

    `by_part` adds up to `peak_gib`; `upper_gib` leaves room for what is not modelled.
    """

    by_part: dict[str, float]
    upper_gib: float
    outside_gib: float  # memory outside the allocator, which must also fit below the limit
    hottest: dict[str, int]  # {"pp_rank": n}
    assumptions: tuple[str, ...] = field(default=ASSUMPTIONS)

    @property
    def peak_gib(self) -> float:
        return sum(self.by_part.values())


def _distance(candidates: Candidates) -> tuple[str, ...]:
    """Returns notes on features of the recipe that no calibrated run has; on CPUs the note ON_CPU instead."""
    if candidates.base.hardware.is_cpu:
        return ON_CPU
    unknown = [name for name, flags in never_measured(candidates).items() if flags.any()]
    return (f"no calibrated run has {', '.join(unknown)}: the upper bound is wider for it",) if unknown else ()


def memory_of(
    candidates: Candidates, *, imbalance: float | None = None, learned: LearnedMemory = NO_MEMORY
) -> MemoryTable:
    """Returns the memory of every row.

    `imbalance`: tokens of the hottest expert rank over the mean, for the upper bound; `learned`: the cluster's
    calibration.
    """
    most = most_load(candidates)
    expected = np.where(unbalanced(candidates), np.minimum(constant("expected_imbalance"), most), 1.0)
    parts, routed_bytes = _bytes_by_part(candidates, expected)
    shape = (candidates.count, candidates.stages.exists.shape[1])
    exists = candidates.stages.exists
    routed_gib = np.broadcast_to(np.where(exists, routed_bytes, 0.0) / GIB, shape)
    loose_gib = routed_gib * unbalanced(candidates)[..., None]
    sizes = {name: np.broadcast_to(np.where(exists, size, 0.0) / GIB, shape) for name, size in parts.items()}
    by_part = learned.moved(sizes, loose_gib)
    needed = sum(by_part.values(), np.zeros(shape))
    hottest = needed.argmax(axis=1)
    peak = needed[np.arange(candidates.count), hottest]
    ratio = np.minimum(constant("imbalance") if imbalance is None else imbalance, most)
    over = np.maximum(0.0, ratio - expected) * unbalanced(candidates)
    resting = sum((by_part[name] for name in RESTING), np.zeros(shape))
    unsure = np.hypot(over[..., None] * routed_gib, learned.half_width_gib(by_part, loose_gib))
    upper = upper_gib(candidates, resting=resting, moving=needed - resting, unsure=unsure)
    return MemoryTable(
        by_part=by_part,
        peak_gib=peak,
        upper_gib=upper,
        hottest=hottest,
        routed_gib=routed_gib,
        outside_gib=np.broadcast_to(outside_bytes(candidates) * learned.outside / GIB, (candidates.count,)),
    )


def estimate_memory(
    recipe: Recipe, *, imbalance: float | None = None, learned: LearnedMemory = NO_MEMORY
) -> MemoryEstimate:
    """Returns the estimate for the pipeline rank that needs most; its tensor, context and data ranks need the same.

    `imbalance`, `learned`: as in `memory_of`.
    """
    candidates = one(recipe)
    found = memory_of(candidates, imbalance=imbalance, learned=learned)
    rank = int(found.hottest[0])
    return MemoryEstimate(
        by_part={name: float(sizes[0, rank]) for name, sizes in found.by_part.items()},
        upper_gib=float(found.upper_gib[0]),
        outside_gib=float(found.outside_gib[0]),
        hottest={"pp_rank": rank},
        assumptions=(*ASSUMPTIONS, *_distance(candidates)),
    )


def _bytes_by_part(candidates: Candidates, expected: Floats) -> tuple[dict[str, Floats], Floats]:
    """Returns (bytes by part, bytes of routed tokens at an even load), each [N, P].

    `expected`: expected load over an even one, [N].
    """
    held = activation_bytes(candidates)
    on_cpu = candidates.base.hardware.is_cpu
    uneven = held.routed * (expected - 1)[..., None]
    loss = np.maximum(_loss(candidates) - held.gone_at_loss, 0.0)
    parameters = held_parameters(candidates)
    # The loss's tensors are free when the first layer runs backward; a CPU's factor was measured for the sum of both.
    workspace = held.workspace if on_cpu else np.maximum(held.workspace - loss, 0.0)
    moving = {
        "activations": held.eager + uneven,
        "cuda_graphs": held.graphed,
        "logits": loss,
        "workspace": workspace,
    }
    factor = unfused(candidates)
    moving = {name: size * factor for name, size in moving.items()}
    if not on_cpu:  # activations are free in the optimizer step: only what it needs beyond them counts
        step = step_bytes(candidates, parameters) - sum(moving.values(), np.zeros(()))
        moving["workspace"] = moving["workspace"] + np.maximum(step, 0.0)
    fixed = {"buffers": buffer_bytes(candidates, parameters)}
    return state_bytes(candidates, parameters) | moving | fixed, held.routed * factor


def unfused(candidates: Candidates) -> Floats:
    """Returns the ratio of activation memory of Megatron-Core's local layers on a CPU to that of fused layers, [N, 1];
    1 on GPUs, []."""
    if not candidates.base.hardware.is_cpu:
        return np.ones(())
    fp32 = candidates.among("precision", "fp32")
    return np.where(fp32, constant("cpu_unfused_fp32"), constant("cpu_unfused_bf16"))[..., None]


def _loss(candidates: Candidates) -> Floats:
    """Returns the bytes of the last stage's vocabulary-sized tensors, [N, P]."""
    at_loss, of_others = logits(candidates)
    heads = candidates.base.architecture.mtp_num_layers or 0
    return candidates.stages.heads * ((at_loss + heads * of_others) * candidates.tokens)[..., None]
