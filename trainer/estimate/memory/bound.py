"""The upper bound of memory above the point estimate: imbalanced experts, transient memory, unmeasured features.

Memory that persists between steps is counted tensor by tensor. The error of transient memory (activations, loss, one
layer's backward) is proportional, and independent of the experts' load. Small peaks have an additional `slack`, for
buffers of GPU libraries. `memory_calibration.csv` has, for each feature of a recipe, the calibrated runs with it and
their errors; `benchmarks/estimate_accuracy.py memory` makes it. A feature without a run, or a peak above the largest
measured one, widens the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, most_of_ranks
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.state import is_fp8
from trainer.recipe.architecture import Architecture
from trainer.recipe.tables import figure, read_table


def _is_hybrid(model: Architecture) -> bool:
    return model.hybrid is not None or model.experimental_attention_variant is not None


OTHER_VENDOR = "libraries of another vendor's GPU"
# feature of a recipe -> the rows that have it
FEATURES: dict[str, Callable[[Candidates], Flags]] = {
    "experts": lambda c: np.full((), c.base.architecture.num_moe_experts is not None),
    "multi-latent attention": lambda c: np.full((), c.base.architecture.multi_latent_attention),
    "hybrid layers": lambda c: np.full((), _is_hybrid(c.base.architecture)),
    "interleaved pipeline": lambda c: c.vpp > 1,
    "context parallel": lambda c: c.cp > 1,
    "fp8": is_fp8,
    "nvfp4": lambda c: c.among("precision", "nvfp4"),
    "all-gather dispatcher": lambda c: c.among("moe_token_dispatcher_type", "allgather") & (c.ep > 1),
    "flex dispatcher": lambda c: c.among("moe_token_dispatcher_type", "flex") & (c.ep > 1),
    "full recompute": lambda c: c.among("recompute_granularity", "full"),
    "selective recompute": lambda c: c.among("recompute_granularity", "selective"),
    "CUDA graphs": lambda c: ~c.among("cuda_graph_impl", "none"),
    "activation offload": lambda c: c.on("fine_grained_activation_offloading"),
    "layer offload": lambda c: c.on("cpu_offloading"),
    "optimizer offload": lambda c: c.on("optimizer_cpu_offload"),
    "precision-aware optimizer": lambda c: c.on("use_precision_aware_optimizer"),
    "Megatron-FSDP": lambda c: c.on("use_megatron_fsdp"),
    OTHER_VENDOR: lambda c: np.full((), c.base.hardware.vendor != "nvidia" and not c.base.hardware.is_cpu),
}


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Errors of the point estimate against measured peaks, in percent; each run was predicted without its own test
    case."""

    rows: int
    cases: int
    median_pct: float
    p90_pct: float
    largest_gib: float  # largest peak of the runs


@cache
def calibrations() -> dict[str, Calibration]:
    """Returns the calibration of each group of runs: "MoE", "dense" and every feature."""
    table = "memory_calibration.csv"
    return {
        row["group"]: Calibration(
            rows=int(figure(row, "rows", table=table)),
            cases=int(figure(row, "cases", table=table)),
            median_pct=figure(row, "median_pct", table=table),
            p90_pct=figure(row, "p90_pct", table=table),
            largest_gib=figure(row, "largest_gib", table=table),
        )
        for row in read_table(table, package="trainer.estimate.memory")
    }


def never_measured(candidates: Candidates) -> dict[str, Flags]:
    """Returns {feature without a calibrated run: the rows that have it}."""
    known = calibrations()
    return {name: has(candidates) for name, has in FEATURES.items() if not known[name].rows}


def upper_gib(candidates: Candidates, *, resting: Floats, moving: Floats, unsure: Floats) -> Floats:
    """Returns the upper bound of the hottest rank, GiB, [N].

    Inputs in GiB, [N, P]: memory that stays between steps, memory within one, and what the load of the hottest expert
    rank and deviations of learned factors may add.
    """
    peak = resting + moving
    libraries = (peak < constant("small")) & (not candidates.base.hardware.is_cpu)
    slack = np.where(libraries, constant("slack"), 0.0)
    worst = most_of_ranks(peak + slack + np.hypot(moving * constant("margin"), unsure))
    bound: Floats = worst * (1 + widened(candidates, most_of_ranks(peak)))
    return bound


def widened(candidates: Candidates, peak_gib: Floats) -> Floats:
    """Returns the share that the bound adds for features and sizes that were never measured, [N]."""
    unknown = sum((flags.astype(float) for flags in never_measured(candidates).values()), np.zeros(()))
    largest = max(known.largest_gib for known in calibrations().values())
    doublings = np.log2(np.maximum(1.0, peak_gib / largest))
    share = constant("margin_feature") * unknown + constant("margin_doubling") * doublings
    return np.minimum(share, constant("margin_most"))


def most_load(candidates: Candidates) -> Floats:
    """Returns the highest load of a rank's experts over the mean that capacities allow; infinite without a capacity."""
    knobs = ("moe_expert_capacity_factor", "moe_expert_rank_capacity_factor")
    factors = [candidates.number(knob, none=np.inf) for knob in knobs]
    return np.maximum(1.0, np.minimum(*factors))


def unbalanced(candidates: Candidates) -> Flags:
    """Returns [N]: true where the experts' load depends on the tokens: several expert ranks, and neither forced balance
    nor padding. False on CPUs, whose factors were measured with the load that occurred."""
    forced = candidates.on("moe_router_force_load_balancing") | candidates.on("moe_pad_expert_input_to_capacity")
    return (candidates.ep > 1) & ~forced & (not candidates.base.hardware.is_cpu)
