"""How far an estimate may be below what a run needs: uneven experts, and what was never measured.

`bound.csv` holds, for each feature a recipe can have, how many calibrated runs have it and by how much the bound is
widened where none has. `benchmarks/estimate_accuracy.py memory` prints the table again from the measurements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.memory_constants import constant
from trainer.estimate.state import is_fp8


def unbalanced(candidates: Candidates) -> Flags:
    """Experts' load depends on the tokens: more than one expert rank, and nothing forces or pads it even."""
    forced = candidates.on("moe_router_force_load_balancing") | candidates.on("moe_pad_expert_input_to_capacity")
    return (candidates.ep > 1) & ~forced


FEATURES: dict[str, Callable[[Candidates], Flags]] = {
    "fp8": is_fp8,
    "nvfp4": lambda candidates: candidates.among("precision", "nvfp4"),
    "flex dispatcher": lambda candidates: candidates.among("moe_token_dispatcher_type", "flex"),
    "cuda graphs": lambda candidates: ~candidates.among("cuda_graph_impl", "none"),
    "activation offload": lambda candidates: (
        candidates.on("fine_grained_activation_offloading") | candidates.on("cpu_offloading")
    ),
    "optimizer offload": lambda candidates: candidates.on("optimizer_cpu_offload"),
    "precision-aware optimizer": lambda candidates: candidates.on("use_precision_aware_optimizer"),
    "fsdp": lambda candidates: candidates.on("use_megatron_fsdp"),
}


def margin(candidates: Candidates) -> Floats:
    """Share of the point that the bound adds."""
    return constant("margin") * np.ones(candidates.count)
