"""Estimates the cost of memory kept on the host: the optimizer step there, and activations copied out and back.

Source: Megatron-Core `hybrid_optimizer.py` (gradients go to the host in their own precision, Adam steps in fp32 on the
CPU, parameters return in 16 bits) and `fine_grained_activation_offload.py`, `cpu_offload.py` (copies on streams of
their own, concurrent with the layers). Shapes: [N], seconds.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.activations import named, routed, saved_by_tensor, select, total
from trainer.estimate.memory.state import acting_dtype
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.links import GB
from trainer.measured.architectures import known

PARAMETER_BYTES = 2.0  # bytes of a parameter copied back from the host
FORWARD = 1 / 3  # share of the forward pass in a layer's compute


def offloaded_share(candidates: Candidates) -> Floats:
    """Returns the share of the optimizer's parameters that are stepped on the host; 0 if the device is a CPU."""
    on = candidates.on("optimizer_cpu_offload") & (not candidates.base.hardware.is_cpu)
    return np.where(on, candidates.number("optimizer_offload_fraction"), 0.0)


def optimizer_offload_s(candidates: Candidates, values: Constants, parameters: Floats) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds per step for the host's share of `parameters`, which a rank's optimizer steps:
    copying gradients, the step, copying parameters back. Overlap hides only the copies."""
    share = offloaded_share(candidates)
    if not share.any():
        return np.zeros(()), np.zeros(())
    each = acting_dtype(candidates, "main_grads_dtype") + PARAMETER_BYTES
    copies = share * parameters * each / GB / (_link_gb_s(candidates) * values["optimizer_link_share"])
    step = share * parameters * values["optimizer_bytes"] / GB / values["host_optimizer_gb_s"]
    hidden = np.where(candidates.on("overlap_cpu_optimizer_d2h_h2d"), values["optimizer_copies_hidden"], 0.0)
    return copies + step, (1 - hidden) * copies + step


def activation_offload_s(
    candidates: Candidates, values: Constants, *, is_moe: bool, load: Floats, compute: Floats
) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds of a layer's copies to the host in forward and back in backward, for one micro
    batch. They are concurrent with the layer's `compute` of both passes: copy time beyond it is exposed, but at least
    the share `offload_exposed`, since copies slow concurrent kernels."""
    fine, layers = candidates.on("fine_grained_activation_offloading"), candidates.on("cpu_offloading")
    if candidates.base.hardware.is_cpu or not (fine.any() or layers.any()):
        return np.zeros(()), np.zeros(())
    saved = saved_by_tensor(candidates, is_moe=is_moe)
    single = select(saved, named(candidates, "offload"))
    share = np.minimum(1.0, candidates.number("cpu_offloading_num_layers") / candidates.base.architecture.num_layers)
    count = total(single) + (load - 1) * routed(single) + np.where(layers, share, 0.0) * total(saved)
    one_way = candidates.tokens * count / GB / (_link_gb_s(candidates) * values["host_link_share"])
    beyond = np.maximum(one_way - FORWARD * compute, 0.0) + np.maximum(one_way - (1 - FORWARD) * compute, 0.0)
    return 2 * one_way, np.maximum(beyond, values["offload_exposed"] * 2 * one_way)


def _link_gb_s(candidates: Candidates) -> float:
    hardware = candidates.base.hardware
    return known(hardware, hardware.host_link_gb_s, "host_link_gb_s")
