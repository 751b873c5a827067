"""Estimates the work once per step after the micro batches: gradient reduction, optimizer step, parameter gather.

Shapes: [N], one value per candidate, in seconds per step of the pipeline rank with most parameters.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, most_of_ranks
from trainer.estimate.held import HeldParameters
from trainer.estimate.memory.state import gathered_bytes, weight_bytes
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.links import GB, ring_s
from trainer.estimate.time.work import TERA
from trainer.measured.architectures import known


def data_parallel_s(
    candidates: Candidates, values: Constants, held: HeldParameters, *, backward: Floats
) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds to reduce gradients and gather parameters on the rank with most parameters."""
    dense, experts = most_of_ranks(held.dense), most_of_ranks(held.experts)
    wide = np.where(candidates.where("grad_reduce_in_fp32", lambda v: v is not False), 4.0, 2.0)
    if candidates.base.hardware.is_cpu:  # gloo has no reduce-scatter: it all-reduces, and each rank keeps its part
        wide = wide * np.where(candidates.on("use_distributed_optimizer"), 2.0, 1.0)
    instances = _instances(candidates)
    replicas = candidates.dp * candidates.cp / instances
    groups = ((replicas, candidates.tp), (candidates.edp / instances, candidates.ep * candidates.etp))
    gathered = map(most_of_ranks, gathered_bytes(candidates, held))
    reduce, gather = (
        sum(
            ring_s(candidates, values, size / GB, ranks, stride=stride)
            for size, (ranks, stride) in zip(sizes, groups, strict=True)
        )
        for sizes in ((dense * wide, experts * wide), gathered)
    )
    # Between instances a rank's shard of the gradients is all-reduced: twice the bytes of a reduce-scatter
    shard = dense / replicas + experts * instances / candidates.edp
    reduce = reduce + ring_s(candidates, values, 2 * shard * wide / GB, instances, stride=replicas * candidates.tp)
    gather = gather + _copied(candidates, values, dense + experts)
    sharded = candidates.on("use_megatron_fsdp") & candidates.among(
        "data_parallel_sharding_strategy", "optim_grads_params"
    )
    # FSDP gathers in forward and again in backward of every micro batch
    repeats = np.where(sharded, candidates.microbatches, 1.0)
    repeats = repeats * values["dp_time"]
    reduce, gather = reduce * repeats, gather * repeats * np.where(sharded, 2.0, 1.0)
    # Gradients overlap with the last micro batch's backward, parameters with the first one's forward; FSDP's with all
    room = backward * np.where(sharded, 1.0, 1 / candidates.microbatches)
    apart = _left(candidates.on("overlap_grad_reduce"), values["dp_exposed"], reduce, room * 2 / 3)
    apart = apart + _left(candidates.on("overlap_param_gather"), values["dp_exposed"], gather, room / 3)
    exposed = np.where(sharded, _left(sharded, values["fsdp_exposed"], reduce + gather, room), apart)
    return reduce + gather, exposed


def _instances(candidates: Candidates) -> Floats:
    """Returns the number of optimizer instances, each a group of replicas with the whole optimizer state; at most the
    number of replicas."""
    written = candidates.number("num_distributed_optimizer_instances", none=1.0)
    few: Floats = np.minimum(candidates.dp * candidates.cp, candidates.edp)
    return np.clip(np.where(candidates.on("use_distributed_optimizer"), written, 1.0), 1.0, np.maximum(few, 1.0))


def _copied(candidates: Candidates, values: Constants, count: Floats) -> Floats:
    """Returns the seconds to copy parameters on a CPU: a distributed optimizer copies every parameter of a rank again,
    even those that no other rank holds (4 to 6 ns per parameter in bursts of cpu-moe and cpu-moe-slow). 0 on GPUs."""
    if not candidates.base.hardware.is_cpu:
        return np.zeros(())
    seconds = count * weight_bytes(candidates) / GB / values["cpu_reduce_gb_s"]
    return np.where(candidates.on("use_distributed_optimizer"), seconds, 0.0)


def _left(overlapped: Flags, least: float | Floats, seconds: Floats, room: Floats) -> Floats:
    """Returns the exposed seconds: all without overlap, else those beyond `room`, but at least the share `least`."""
    hidden = np.minimum((1 - least) * seconds, room)
    return np.where(overlapped, seconds - hidden, seconds)


def stepped_parameters(candidates: Candidates, held: HeldParameters) -> Floats:
    """Returns the parameters that a rank's optimizer steps: its shard, or all that it holds."""
    dense, experts = most_of_ranks(held.dense), most_of_ranks(held.experts)
    sharded = candidates.on("use_distributed_optimizer") | candidates.on("use_megatron_fsdp")
    shard: Floats = dense / (candidates.dp * candidates.cp) + experts / candidates.edp
    return np.where(sharded, shard * _instances(candidates), dense + experts)


def optimizer_s(candidates: Candidates, values: Constants, parameters: Floats) -> Floats:
    """Returns the seconds of Adam over `parameters` on the device, which is memory-bound."""
    hardware = candidates.base.hardware
    rate = (
        values["cpu_optimizer_tb_s"]
        if hardware.is_cpu
        else known(hardware, hardware.memory_tb_s, "hbm_tb_s") * values["optimizer_rate"]
    )
    seconds: Floats = parameters * values["optimizer_bytes"] / (rate * TERA)
    return seconds
