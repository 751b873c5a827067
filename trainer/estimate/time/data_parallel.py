"""Estimates the work once per step after the micro batches: gradient reduction, optimizer step, parameter gather.

Shapes: [N], one value per candidate, in seconds per step of the pipeline rank with most parameters.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats, most_of_ranks
from trainer.estimate.held import HeldParameters
from trainer.estimate.memory.state import gathered_bytes, weight_bytes
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.links import GB, ring_s
from trainer.estimate.time.work import TERA
from trainer.measured.architectures import known

BUCKET, BUCKET_PER_REPLICA = 40e6, 1e6  # parameters per bucket by default: at least, and for each replica


def data_parallel_s(
    candidates: Candidates, values: Constants, held: HeldParameters, *, passes: Floats
) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds to reduce gradients and gather parameters on the rank with most parameters.

    `passes`: seconds of the rank's passes, forward and backward, in a step.
    """
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
    # Gradients overlap with the last backward passes, parameters with the first forward passes; FSDP's with all passes
    share = values["dp_exposed"]
    once = passes / candidates.microbatches / candidates.vpp
    buckets = _buckets(candidates, (dense + experts) / candidates.vpp, replicas)
    late = _exposed(candidates, share, reduce, once * 2 / 3, buckets)
    apart = np.where(candidates.on("overlap_grad_reduce"), late, reduce)
    late = _exposed(candidates, share, gather, once / 3, buckets)
    apart = apart + np.where(candidates.on("overlap_param_gather"), late, gather)
    whole = reduce + gather
    of_all = np.maximum(whole - passes, values["fsdp_exposed"] * whole)
    return whole, np.where(sharded, of_all, apart)


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


def _buckets(candidates: Candidates, parameters: Floats, replicas: Floats) -> Floats:
    """Returns the number of buckets of a model chunk with that many parameters. Source: Megatron-Core,
    distributed_data_parallel.py."""
    largest = np.maximum(BUCKET, BUCKET_PER_REPLICA * replicas)
    size = candidates.number("bucket_size", none=np.nan)
    number: Floats = np.maximum(np.round(parameters / np.where(np.isnan(size), largest, size)), 1.0)
    return number


def _exposed(candidates: Candidates, least: float | Floats, seconds: Floats, once: Floats, buckets: Floats) -> Floats:
    """Returns the exposed seconds of traffic that overlaps with each chunk's last pass (gradients) or first pass
    (parameters), which takes `once`.

    Between those of two chunks there is a group of micro batches. No pass hides the bucket that is ready last or needed
    first; of the rest at least the share `least` is exposed.
    """
    chunks = candidates.vpp
    beyond_all = seconds - ((chunks - 1) * candidates.group + 1) * once
    beyond_one = seconds / chunks - once
    last = seconds / chunks / buckets
    result: Floats = np.maximum(np.maximum(beyond_all, beyond_one), last + least * (seconds - last))
    return result


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
