"""Step time by closed form: what every part of a training step takes, and what it hides behind what.

A step is micro batches through the slowest pipeline stage, plus the pipeline's bubble, plus what gradients and
parameters cannot hide, plus the optimizer. A stage's time is its layers' device time (products, attention, memory-bound
work, exposed communication, recompute) or its host time, whichever is longer. Constants are in `constants.csv`, fitted
to published runs by `benchmarks/estimate_accuracy.py`, which also judges them on models and GPUs left out.

Shapes: N candidates, P pipeline ranks; parts are seconds a step of the slowest stage, [N].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, one
from trainer.estimate.constants import Constants
from trainer.estimate.constants import constants as fitted
from trainer.estimate.flops import model_flops_per_token
from trainer.estimate.links import GB, collective_s, dispatch_s, domain_of, ring_s
from trainer.estimate.parameters import attention_channels, layer_parameters
from trainer.estimate.software import Release, latest, releases
from trainer.estimate.work import MULTIPLY_ADD, TERA, Forward, forward_of, gemm_tflops, host_s
from trainer.recipe.schema import Recipe

TP_COLLECTIVES = 4.0  # all-gathers and reduce-scatters of a dense layer's forward; backward has one gather more
TP_BACKWARD = 1.5


@dataclass(frozen=True, kw_only=True)
class TimeTable:
    """Seconds a step, [N] each. Parts named `…_exposed_s` are inside the step; `ep_s`, `tp_s`, `cp_s` count hidden
    communication too, and `host_s` is only what the device waits for."""

    by_part: dict[str, Floats]
    step_s: Floats
    tokens_per_s_per_gpu: Floats
    model_tflops_per_gpu: Floats
    spread: Floats  # relative half width of the interval


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """One row of a TimeTable, and what was assumed."""

    by_part: dict[str, float]
    step_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    spread: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """One layer of one micro batch, forward and backward, seconds [N]."""

    compute: Floats
    recompute: Floats
    ep: Floats
    ep_exposed: Floats
    tp: Floats
    tp_exposed: Floats
    cp: Floats
    cp_exposed: Floats
    host: Floats

    @property
    def device(self) -> Floats:
        return self.compute + self.recompute + self.ep_exposed + self.tp_exposed + self.cp_exposed


def time_of(candidates: Candidates, *, release: str | None = None, constants: Constants | None = None) -> TimeTable:
    """Step time of every candidate. `release` is a row of software.csv (None: the latest)."""
    values, software = constants or fitted(), releases()[release or latest()]
    dense = _layer(candidates, values, software, is_moe=False)
    moe = _layer(candidates, values, software, is_moe=True) if _has_experts(candidates) else dense
    stage = _stage(candidates, values, dense, moe)
    m = candidates.microbatches
    slowest = np.argmax(stage["busy"], axis=1)

    def worst(part: Floats) -> Floats:
        return np.take_along_axis(np.broadcast_to(part, stage["busy"].shape), slowest[:, None], axis=1)[:, 0]

    parts = {f"{name}_s": worst(stage[name]) * m for name in _PARTS}
    parts["pp_s"], parts["pp_exposed_s"] = _sends(candidates, values)
    busy = worst(stage["busy"]) * m + parts["pp_exposed_s"]
    mean = np.where(candidates.stages.exists, stage["busy"], 0.0).sum(axis=1) / candidates.pp
    parts["pp_bubble_s"] = np.broadcast_to((candidates.pp - 1) / candidates.vpp, busy.shape) * mean
    dp, exposed = _data_parallel(candidates, values, backward=busy)
    parts["dp_s"], parts["dp_exposed_s"] = dp, exposed
    parts["optimizer_s"] = _optimizer(candidates, values)
    fixed = values["host_step_ms"] * 1e-3
    work = busy + parts["pp_bubble_s"] + parts["dp_exposed_s"] + parts["optimizer_s"] + fixed
    step = work * (1 + values["sync_share"] * (candidates.base.world_size > 1))
    parts["sync_s"] = step - work
    parts["host_s"] = parts["host_s"] + fixed
    return _table(candidates, {name: np.broadcast_to(part, step.shape) for name, part in parts.items()}, step)


_PARTS = ("compute", "recompute", "ep", "ep_exposed", "tp", "tp_exposed", "cp", "cp_exposed", "head", "host")


def _table(candidates: Candidates, parts: dict[str, Floats], step: Floats) -> TimeTable:
    sequences = candidates.number("global_batch_size")
    tokens = sequences * candidates.number("seq_length") / candidates.base.world_size / step
    per_token = candidates.column("seq_length").each(
        lambda length: model_flops_per_token(candidates.base.architecture, int(length))
    )
    return TimeTable(
        by_part=parts,
        step_s=step,
        tokens_per_s_per_gpu=tokens,
        model_tflops_per_gpu=tokens * per_token / TERA,
        spread=np.full(step.shape, SPREAD),
    )


SPREAD = 0.2


def estimate_time(recipe: Recipe, *, release: str | None = None) -> TimeEstimate:
    """The estimate of one recipe. Raises KeyError for a release that has no row."""
    table = time_of(one(recipe), release=release)
    return TimeEstimate(
        by_part={name: float(part[0]) for name, part in table.by_part.items()},
        step_s=float(table.step_s[0]),
        tokens_per_s_per_gpu=float(table.tokens_per_s_per_gpu[0]),
        model_tflops_per_gpu=float(table.model_tflops_per_gpu[0]),
        spread=float(table.spread[0]),
        assumptions=(f"software release {release or latest()}",),
    )


def _has_experts(candidates: Candidates) -> bool:
    return candidates.base.architecture.num_moe_experts is not None


def _imbalance(candidates: Candidates, values: Constants) -> Floats:
    """The hottest expert rank's tokens over the mean: 1 with forced balance or padding to capacity."""
    even = candidates.on("moe_router_force_load_balancing") | candidates.on("moe_pad_expert_input_to_capacity")
    return np.where(even | (candidates.ep <= 1), 1.0, values["natural_imbalance"])


def _layer(candidates: Candidates, values: Constants, release: Release, *, is_moe: bool) -> _Layer:
    imbalance = _imbalance(candidates, values) if is_moe else np.ones(())
    forward = forward_of(candidates, values, release, is_moe=is_moe, imbalance=imbalance)
    one_way = dispatch_s(candidates, values) * imbalance if is_moe else np.zeros(())
    again, dispatches = _recomputed(candidates, forward)
    compute = forward.total + forward.backward
    notify = _notify(candidates, values) if is_moe else np.zeros(())
    ep = one_way * (4.0 + 2.0 * dispatches) + notify * (1.0 + dispatches)
    overlapped = candidates.on("overlap_moe_expert_parallel_comm") & bool(is_moe)
    hidden = np.minimum(values["ep_hidden"] * ep, values["ep_reach"] * compute)
    ep_exposed = np.where(overlapped, ep - hidden, ep)
    busy = compute * np.where(overlapped & (ep > 0), 1 + values["ep_contention"], 1.0)
    tp = _tensor_parallel(candidates, is_moe=is_moe)
    tp_exposed = tp * np.where(candidates.on("tp_comm_overlap"), values["tp_exposed"], 1.0)
    cp = _context_parallel(candidates)
    full = np.where(candidates.among("recompute_granularity", "full"), 1.0, 0.0)
    host = host_s(candidates, values, release, is_moe=is_moe)
    return _Layer(
        compute=busy,
        recompute=again,
        ep=ep,
        ep_exposed=ep_exposed,
        tp=tp * (1 + full / (1 + TP_BACKWARD)),
        tp_exposed=tp_exposed * (1 + full / (1 + TP_BACKWARD)),
        cp=cp,
        cp_exposed=np.maximum(cp * values["cp_exposed"], cp - forward.attention - forward.attention_backward),
        host=host,
    )


def _notify(candidates: Candidates, values: Constants) -> Floats:
    """How many tokens go where, before they go: a small exchange and, outside whole-iteration graphs, a wait of the
    host for its result. Backward reuses it."""
    ranks = candidates.ep * candidates.etp
    one = np.where(ranks <= domain_of(candidates), values["notify_us.nvlink"], values["notify_us.network"]) * 1e-6
    whole = candidates.among("cuda_graph_impl", "full_iteration")
    return np.where(ranks > 1, one * np.where(whole, 0.2, 1.0), 0.0)


def _recomputed(candidates: Candidates, forward: Forward) -> tuple[Floats, Floats]:
    """(device seconds done again, 1 where dispatch and combine are too) of one layer."""
    full = candidates.among("recompute_granularity", "full")
    selective = candidates.among("recompute_granularity", "selective")
    modules = {
        "core_attn": forward.attention,
        "moe_act": forward.activation,
        "layernorm": forward.norms * 0.5,
        "mla_up_proj": forward.up_projection,
        "mlp": forward.feed_forward,
        "moe": forward.grouped + forward.activation + forward.permute + forward.quantize * 0.7,
        "shared_experts": forward.shared,
    }
    again = sum(
        (
            np.where(candidates.where("recompute_modules", _lists(name)), seconds, 0.0)
            for name, seconds in modules.items()
        ),
        start=np.zeros(()),
    )
    count = _checkpointed(candidates)
    dispatches = np.where(full, count, np.where(selective & candidates.lists("recompute_modules", "moe"), 1.0, 0.0))
    return np.where(full, forward.total * count, np.where(selective, again, 0.0)), dispatches


def _checkpointed(candidates: Candidates) -> Floats:
    """Share of the layers that full recompute covers: all with `uniform`, the first ones of a stage with `block`."""
    layers = candidates.base.architecture.num_layers / candidates.pp / candidates.vpp
    block = candidates.number("recompute_num_layers", none=1.0) / layers
    return np.where(candidates.among("recompute_method", "block"), np.minimum(1.0, block), 1.0)


def _lists(name: str) -> Callable[[Any], bool]:
    """As Megatron: selective recompute without modules is core attention's."""
    return lambda modules: name in (("core_attn",) if modules is None else modules)


def _tensor_parallel(candidates: Candidates, *, is_moe: bool) -> Floats:
    """Gathers and scatters of hidden states, forward and backward; an MoE layer with ETP 1 has attention's only."""
    model = candidates.base.architecture
    gb = candidates.tokens * (candidates.tp - 1) / candidates.tp * model.hidden_size * 2 / GB
    one_way = collective_s(candidates, gb, candidates.tp, stride=np.ones(()))
    shared = bool(model.moe_shared_expert_intermediate_size)
    passes = np.where(is_moe & (candidates.etp <= 1), TP_COLLECTIVES / 2 * (2 if shared else 1), TP_COLLECTIVES)
    return one_way * passes * (1 + TP_BACKWARD)


def _context_parallel(candidates: Candidates) -> Floats:
    """Keys and values of the other ranks' pieces, once in forward and with their gradients in backward."""
    model = candidates.base.architecture
    _, key, value = attention_channels(model)
    gb = candidates.tokens * (candidates.cp - 1) * (key + value) / candidates.tp * 2 / GB
    one_way = collective_s(candidates, gb, candidates.cp, stride=candidates.tp)
    return one_way * 3.0


def _stage(candidates: Candidates, values: Constants, dense: _Layer, moe: _Layer) -> dict[str, Floats]:
    """Seconds a micro batch of every pipeline rank, [N, P]."""
    held, model = candidates.stages, candidates.base.architecture
    mtp_moe = held.mtp * float(model.moe_layers[-1])
    moes, denses = held.moe + mtp_moe, held.dense + held.mtp - mtp_moe
    parts = {
        name: denses * _column(getattr(dense, name)) + moes * _column(getattr(moe, name))
        for name in (
            "compute",
            "recompute",
            "ep",
            "ep_exposed",
            "tp",
            "tp_exposed",
            "cp",
            "cp_exposed",
            "device",
            "host",
        )
    }
    parts["head"] = _head(candidates, values)
    device = parts["device"] + parts["head"]
    p = values["overlap_power"]
    busy = (device**p + parts["host"] ** p) ** (1 / p)
    busy = np.where(held.exists, busy, 0.0)
    parts["host"] = busy - np.where(held.exists, device, 0.0)
    return parts | {"busy": np.broadcast_to(busy, (candidates.count, busy.shape[1]))}


def _column(values: Floats) -> Floats:
    return values[:, None] if values.ndim else values


def _head(candidates: Candidates, values: Constants) -> Floats:
    """Output head and loss on the last rank, MTP's logits included, and MTP's projections where it is, [N, P]."""
    model, held = candidates.base.architecture, candidates.stages
    rate = gemm_tflops(candidates, values) * TERA
    # The head stays in BF16 in every precision
    bf16 = rate if candidates.base.hardware.is_cpu else np.minimum(rate, _bf16(candidates, values))
    flops = 3 * MULTIPLY_ADD * candidates.tokens / candidates.tp
    head = flops * model.vocab_size * model.hidden_size / bf16
    projection = flops * 2 * model.hidden_size**2 / rate
    return held.heads * _column(head) * (1 + (model.mtp_num_layers or 0)) + held.mtp * _column(projection)


def _bf16(candidates: Candidates, values: Constants) -> Floats:
    plain = candidates.base.replace({"precision": "bf16"})
    return gemm_tflops(one(plain), values) * TERA


def _sends(candidates: Candidates, values: Constants) -> tuple[Floats, Floats]:
    """Activations to the next stage and gradients back, all micro batches: (whole, exposed)."""
    model = candidates.base.architecture
    gb = candidates.tokens / candidates.tp * model.hidden_size * 2 / GB
    stride = candidates.base.world_size / candidates.pp
    each = collective_s(candidates, gb, np.minimum(candidates.pp, 2.0), stride=stride)
    whole = 2 * each * candidates.vpp * candidates.microbatches
    overlapped = (candidates.vpp > 1) | candidates.on("overlap_p2p_comm")
    return whole, whole * np.where(overlapped, 1 - values["p2p_hidden"], 1.0)


def _data_parallel(candidates: Candidates, values: Constants, *, backward: Floats) -> tuple[Floats, Floats]:
    """(all, exposed) seconds of reducing gradients and gathering parameters of the fullest rank."""
    dense, experts = _held_parameters(candidates)
    wide = np.where(candidates.where("grad_reduce_in_fp32", lambda v: v is not False), 4.0, 2.0)
    narrow = np.where(candidates.on("fp8_param_gather"), 1.0, 2.0)
    replicas = candidates.dp * candidates.cp
    groups = ((dense, replicas, candidates.tp), (experts, candidates.edp, candidates.ep * candidates.etp))
    times = []
    for bytes_each in (wide, narrow):
        seconds = sum(
            ring_s(candidates, held * bytes_each / GB, ranks, stride=stride) for held, ranks, stride in groups
        )
        times.append(seconds)
    reduce, gather = times
    sharded = candidates.on("use_megatron_fsdp") & candidates.among(
        "data_parallel_sharding_strategy", "optim_grads_params"
    )
    # FSDP gathers in forward and again in backward, once a micro batch
    repeats = np.where(sharded, candidates.microbatches, 1.0)
    reduce, gather = reduce * repeats, gather * repeats * np.where(sharded, 2.0, 1.0)
    # Overlap lies in the last (first) micro batch's backward (forward); FSDP's in every one
    room = backward * np.where(sharded, 1.0, 1 / candidates.microbatches)
    exposed = _left(values, candidates.on("overlap_grad_reduce") | sharded, reduce, room * 2 / 3)
    exposed = exposed + _left(values, candidates.on("overlap_param_gather") | sharded, gather, room / 3)
    return reduce + gather, exposed


def _left(values: Constants, overlapped: Flags, seconds: Floats, room: Floats) -> Floats:
    hidden = np.minimum((1 - values["dp_exposed"]) * seconds, room)
    return np.where(overlapped, seconds - hidden, seconds)


def _held_parameters(candidates: Candidates) -> tuple[Floats, Floats]:
    """(dense, expert) parameters of the fullest pipeline rank, [N]."""
    model, held = candidates.base.architecture, candidates.stages
    kinds = {moe: layer_parameters(model, is_moe=moe) for moe in (False, True)}
    table = model.vocab_size * model.hidden_size / _column(candidates.tp)
    moes = held.moe + held.mtp * float(model.moe_layers[-1])
    denses = held.dense + held.mtp * float(not model.moe_layers[-1])

    def dense_of(moe: bool) -> Floats:
        return kinds[moe].split / _column(candidates.tp) + kinds[moe].whole

    dense = denses * dense_of(False) + moes * dense_of(True) + (held.embeds * 1.0 + held.heads) * table
    experts = moes * kinds[True].experts / _column(candidates.ep * candidates.etp)
    return dense.max(axis=1), experts.max(axis=1)


def _optimizer(candidates: Candidates, values: Constants) -> Floats:
    """Adam over this rank's shard, bound by memory."""
    hardware = candidates.base.hardware
    dense, experts = _held_parameters(candidates)
    sharded = candidates.on("use_distributed_optimizer") | candidates.on("use_megatron_fsdp")
    shard = np.where(sharded, dense / (candidates.dp * candidates.cp) + experts / candidates.edp, dense + experts)
    rate = (hardware.memory_tb_s or 0.02) * TERA * 0.7
    return shard * values["optimizer_bytes"] / rate
