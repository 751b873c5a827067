"""What a step does once: gradients reduced, the optimizer stepped, parameters gathered, with what hides behind passes.

Buckets of gradients are sent as the last micro batch's backward makes them; buckets of parameters come while the first
micro batch's forward of the next step needs them. Each rank has its own; the slowest decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trainer.engines.simulated.rates import GIGA
from trainer.model.parameters import LayerParameters, kind_parameters, mtp_parameters, table_parameters
from trainer.recipe.architecture import Architecture, LayerKind

if TYPE_CHECKING:
    from trainer.engines.simulated.step import Simulation

MOST_BUCKETS = 24  # played; more would only be smaller
OWN_BUCKET = 40e6  # parameters, at least; Megatron-Core takes 1e6 a DP rank where that is more
MASTER_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "uint8": 1.0}


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """Microseconds of one pipeline rank after its last pass: gradients exposed, optimizer, parameters exposed."""

    passes_us: float  # when its last pass ends
    gradients_us: float
    optimizer_us: float
    parameters_us: float
    reduce_us: float  # all of the reduction, and of the gathering, hidden or not
    gather_us: float
    buckets: int


@dataclass(frozen=True, kw_only=True)
class EndOfStep:
    ranks: tuple[RankEnd, ...]
    host_us: float  # work of the host that nothing hides
    step_us: float


def end_of_step(simulation: Simulation) -> EndOfStep:
    values, machine, rates = simulation.rates.values, simulation.machine, simulation.rates
    ranks = tuple(_rank_end(simulation, rank) for rank in range(simulation.layout.pp))
    slow = values["host.grace"] if rates.hardware.name.startswith("gb") else 1.0
    host = 1e3 * (values["host.step"] * slow * machine.host.launch + machine.host.step_ms)
    host = host if not rates.hardware.is_cpu else 1e3 * machine.host.step_ms
    reduced = max(rank.passes_us + rank.gradients_us for rank in ranks)
    after = max(rank.optimizer_us + rank.parameters_us for rank in ranks)
    return EndOfStep(ranks=ranks, host_us=host, step_us=reduced + after + host)


def chunk_parameters(simulation: Simulation, rank: int, chunk: int) -> tuple[float, float]:
    """(parameters outside the experts, parameters of experts) that a rank holds of one chunk."""
    model, layout = simulation.recipe.architecture, simulation.layout
    stage = simulation.stages[rank][chunk]
    layers = [_layer_parameters(model, *simulation.kind(layer)[:2]) for layer in stage.layers]
    layers += [mtp_parameters(model)] * stage.mtp
    dense = sum(layer.dense_of_rank(layout.tp) for layer in layers)
    experts = sum(layer.experts_of_rank(layout.ep, layout.etp) for layer in layers)
    tables = stage.embeds + stage.heads
    return float(dense + tables * table_parameters(model, layout.tp)), float(experts)


@cache
def _layer_parameters(model: Architecture, mixer: str, feed: str) -> LayerParameters:
    return kind_parameters(model, LayerKind(mixer, feed))  # type: ignore[arg-type]


def _rank_end(simulation: Simulation, rank: int) -> RankEnd:
    recipe, layout, rates = simulation.recipe, simulation.layout, simulation.rates
    chunks = [chunk_parameters(simulation, rank, chunk) for chunk in range(layout.vpp)]
    dense, experts = sum(one[0] for one in chunks), sum(one[1] for one in chunks)
    replicas, expert_replicas = layout.dp * layout.cp, layout.edp
    sharded = bool(recipe.knob("use_distributed_optimizer") or recipe.knob("use_megatron_fsdp"))
    instances = float(recipe.knob("num_distributed_optimizer_instances") or 1)
    wide = 2.0 if recipe.knob("grad_reduce_in_fp32") is False else 4.0
    narrow = 1.0 if recipe.knob("fp8_param_gather") else 2.0

    def ring(size: float, ranks: float, stride: float) -> float:
        return rates.ring_us(size * (ranks - 1) / ranks / GIGA, ranks, stride=stride) if ranks > 1 else 0.0

    strides = float(layout.tp), float(layout.ep * layout.etp)
    twice = 1.0 if sharded else 2.0  # an all-reduce is a reduce-scatter and an all-gather
    reduce_us = twice * (
        ring(dense * wide, replicas / instances, strides[0])
        + ring(experts * wide, expert_replicas / instances, strides[1])
    )
    if instances > 1:
        reduce_us += ring(
            (dense + experts) * wide / max(1.0, replicas / instances), instances, replicas / instances * strides[0]
        )
    gather_us = (
        ring(dense * narrow, replicas / instances, strides[0])
        + ring(experts * narrow, expert_replicas / instances, strides[1])
        if sharded
        else 0.0
    )
    if _in_passes(simulation):
        reduce_us = gather_us = 0.0
    size = float(recipe.knob("bucket_size") or max(OWN_BUCKET, 1e6 * replicas))
    buckets = max(1, min(MOST_BUCKETS, round((dense + experts) / size)))
    shard = (
        dense / max(1.0, replicas / instances) + experts / max(1.0, expert_replicas / instances)
        if sharded
        else dense + experts
    )
    return RankEnd(
        passes_us=simulation.run.until_us(rank),
        gradients_us=_gradients_left(simulation, rank, reduce_us, buckets),
        optimizer_us=_optimizer_us(simulation, shard),
        parameters_us=_parameters_left(simulation, rank, gather_us, buckets),
        reduce_us=reduce_us,
        gather_us=gather_us,
        buckets=buckets,
    )


def _in_passes(simulation: Simulation) -> bool:
    recipe = simulation.recipe
    return bool(
        recipe.knob("use_megatron_fsdp") and recipe.knob("data_parallel_sharding_strategy") == "optim_grads_params"
    )


def _beside(simulation: Simulation) -> float:
    """Speed of DP traffic beside compute, over its own."""
    share = simulation.rates.values["overlap.dp"] * simulation.machine.overlap.dp
    return max(share, 1e-3)


def _gradients_left(simulation: Simulation, rank: int, whole_us: float, buckets: int) -> float:
    """Exposed: what is still under way when the last backward ends, and what sharing the SMs cost that."""
    if not whole_us or not simulation.recipe.knob("overlap_grad_reduce"):
        return whole_us
    run = simulation.run
    ends = _last_backwards(simulation, rank)
    until = run.until_us(rank)
    each = whole_us / buckets
    per_chunk = max(1, buckets // len(ends))
    ready = sorted(end - length * (1 - (k + 1) / per_chunk) for end, length in ends for k in range(per_chunk))
    each = whole_us / len(ready)
    speed, free = _beside(simulation), 0.0
    for moment in ready:
        start = max(free, moment)
        beside = max(0.0, min(until - start, each / speed))
        free = start + beside + max(0.0, each - beside * speed)
    lost = simulation.rates.collective_sms() * simulation.machine.overlap.sm_contention
    hidden = whole_us - max(0.0, free - until)
    return max(0.0, free - until) + lost * max(0.0, hidden)


def _last_backwards(simulation: Simulation, rank: int) -> list[tuple[float, float]]:
    """(end, length) of the last backward of every chunk, in the whole step."""
    found: dict[int, tuple[float, float]] = {}
    for turn in simulation.run.turns[rank]:
        for one in turn.passes:
            if not one.forward:
                found[one.chunk] = (turn.end_us + simulation.run.more_us, turn.end_us - turn.start_us)
    return list(found.values())


def _parameters_left(simulation: Simulation, rank: int, whole_us: float, buckets: int) -> float:
    """Exposed: how long the first forward passes wait for their parameters."""
    if not whole_us or not simulation.recipe.knob("overlap_param_gather"):
        return whole_us
    needed: list[float] = []
    seen: set[int] = set()
    first = simulation.run.turns[rank][0].start_us
    per_chunk = max(1, buckets // simulation.layout.vpp)
    for turn in simulation.run.turns[rank]:
        for one in turn.passes:
            if one.forward and one.chunk not in seen:
                seen.add(one.chunk)
                length = turn.end_us - turn.start_us
                needed += [turn.start_us - first + length * k / per_chunk for k in range(per_chunk)]
    needed.sort()
    each, speed = whole_us / len(needed), _beside(simulation)
    done = late = 0.0
    for moment in needed:
        done += each if done == 0 else each / speed
        late = max(late, done - moment)
    lost = simulation.rates.collective_sms() * simulation.machine.overlap.sm_contention
    return late + lost * max(0.0, whole_us - late)


def _optimizer_us(simulation: Simulation, parameters: float) -> float:
    """Adam reads gradients, master weights and moments, writes the latter two and the parameters."""
    recipe, rates = simulation.recipe, simulation.rates
    sizes = {"main_params_dtype": 4.0, "exp_avg_dtype": 4.0, "exp_avg_sq_dtype": 4.0, "main_grads_dtype": 4.0}
    if recipe.knob("use_precision_aware_optimizer"):
        sizes = {name: MASTER_BYTES.get(str(recipe.knob(name)), 4.0) for name in sizes}
    state = 2 * (sizes["main_params_dtype"] + sizes["exp_avg_dtype"] + sizes["exp_avg_sq_dtype"])
    size = parameters * (state + sizes["main_grads_dtype"] + 2.0)
    on_host = float(recipe.knob("optimizer_offload_fraction")) if recipe.knob("optimizer_cpu_offload") else 0.0
    host_gb = on_host * size / GIGA
    device = rates.optimizer_us((1 - on_host) * size)
    if not host_gb:
        return device
    stepped = 1e6 * host_gb / rates.values["optimizer.host_rate"] * simulation.machine.host.launch
    copied = rates.copy_us(on_host * parameters * 6.0 / GIGA)
    hidden = 0.6 if recipe.knob("overlap_cpu_optimizer_d2h_h2d") else 0.0
    return device + stepped + (1 - hidden) * copied
