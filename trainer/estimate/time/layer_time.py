"""Time of one layer for one micro batch, forward and backward: device time by part, and host time.

Communication has two figures, total and exposed. Shapes: [N], one value per candidate, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.memory.activations import wide_bytes
from trainer.estimate.memory.bound import most_load, unbalanced
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.context_parallel import context_parallel_s
from trainer.estimate.time.links import GB, collective_s, dispatch_s, domain_of, latencies_s
from trainer.estimate.time.offload import activation_offload_s
from trainer.estimate.time.work import FORWARD_SHARE, SCAN_BACKWARD, Forward, forward_of, host_s, operators_s
from trainer.measured.software import Release
from trainer.model.layer import expert_input
from trainer.model.shares import class_shares

TP_COLLECTIVES = 2.0  # all-gathers and reduce-scatters of a sublayer's forward; backward has one more all-gather
TP_BACKWARD = 1.5
EXPERTS_HELD, EXPERT_RANKS = 8.0, 16.0  # the run from which natural_imbalance was taken
PREPROCESS_CAPTURED = (
    0.2  # share of the exchange of token counts (`notify_s`) that remains if the host does not wait for it
)


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One layer for one micro batch, forward and backward, seconds [N]. The classes are those of traces."""

    gemm: Floats  # without the experts'
    grouped: Floats  # the experts'
    attention: Floats  # the scans of other mixers too
    permute: Floats
    quantize: Floats
    memory_bound: Floats  # norms and activations
    recompute: Floats
    ep: Floats
    ep_exposed: Floats
    tp: Floats
    tp_exposed: Floats
    cp: Floats
    cp_exposed: Floats
    offload: Floats  # offload of activations
    offload_exposed: Floats
    host: Floats

    @property
    def compute(self) -> Floats:
        return self.gemm + self.grouped + self.attention + self.permute + self.quantize + self.memory_bound

    @property
    def device(self) -> Floats:
        exposed = self.ep_exposed + self.tp_exposed + self.cp_exposed + self.offload_exposed
        return self.compute + self.recompute + exposed


def layer_time(
    candidates: Candidates, values: Constants, release: Release, *, is_moe: bool, given_load: float | None = None
) -> LayerTime:
    """Returns the time of a layer with experts or without.

    `given_load`: tokens of the hottest expert rank over the mean, if nothing forces a balance; None: by `imbalance`.
    """
    load = imbalance(candidates, values, given=given_load) if is_moe else np.ones(())
    forward = forward_of(candidates, values, release, is_moe=is_moe, imbalance=load)
    one_way = dispatch_s(candidates, values) * load if is_moe else np.zeros(())
    again, dispatches = _recomputed(candidates, forward)
    operators = operators_s(candidates, values, is_moe=is_moe)
    classes = _classes(forward, operators)
    compute = sum(classes.values(), np.zeros(()))
    notify = notify_s(candidates, values) if is_moe else np.zeros(())
    ep = one_way * (4.0 + 2.0 * dispatches) + notify * (1.0 + dispatches)
    merged = _merged(candidates) * bool(is_moe)
    ep = ep * (1 + merged * (values["ep_slowed"] - 1))
    most = np.where(candidates.whole_iteration, values["ep_hidden_captured"], values["ep_hidden"])
    hidden = merged * np.minimum(most * ep, values["ep_reach"] * compute)
    with_weights = np.where(_overlaps_weights(candidates, is_moe=is_moe), np.minimum(one_way, forward.grouped), 0.0)
    ep_exposed = ep - hidden - with_weights
    slowed = np.where(ep > 0, 1 + merged * values["ep_contention"], 1.0)
    tp = _tensor_parallel(candidates, values, is_moe=is_moe)
    tp_exposed = tp * np.where(candidates.on("tp_comm_overlap"), values["tp_exposed"], 1.0)
    among = _expert_tensor_parallel(candidates, values) * load * (4.0 + 2.0 * dispatches) if is_moe else np.zeros(())
    cp, cp_exposed = context_parallel_s(candidates, values, forward)
    offload, offload_exposed = activation_offload_s(candidates, values, is_moe=is_moe, load=load, compute=compute)
    full = np.where(candidates.among("recompute_granularity", "full"), 1.0, 0.0)
    host = host_s(candidates, values, release, is_moe=is_moe)
    return LayerTime(
        **{name: seconds * slowed for name, seconds in classes.items()},
        recompute=(again + full * FORWARD_SHARE * operators) * values["recompute_time"],
        ep=ep,
        ep_exposed=ep_exposed,
        tp=tp * (1 + full / (1 + TP_BACKWARD)) + among,
        tp_exposed=tp_exposed * (1 + full / (1 + TP_BACKWARD)) + among,
        cp=cp,
        cp_exposed=cp_exposed,
        offload=offload,
        offload_exposed=offload_exposed,
        host=host,
    )


def _classes(forward: Forward, operators: Floats) -> dict[str, Floats]:
    """Returns forward plus backward seconds by class."""
    return {
        "gemm": 3.0 * forward.gemm,
        "grouped": 3.0 * forward.grouped,
        "attention": forward.attention + forward.attention_backward + (1 + SCAN_BACKWARD) * forward.scan,
        "permute": 3.0 * forward.permute,
        "quantize": 3.0 * forward.quantize,
        "memory_bound": 3.0 * (forward.norms + forward.activation) + operators,
    }


def imbalance(candidates: Candidates, values: Constants, *, given: float | None = None) -> Floats:
    """Returns the hottest expert rank's tokens over the mean: 1 where `unbalanced` is false, else `given`, at
    most what capacities allow.

    Without `given` it scales from `natural_imbalance`, that of 16 ranks with 8 experts each: loads of a rank's experts
    even out as 1/√experts, and the hottest of n ranks is √(2 ln n) standard deviations above the mean.
    """
    held = (candidates.base.architecture.num_moe_experts or 1) / candidates.ep
    ranks = np.maximum(candidates.ep, 2.0)
    over = (EXPERTS_HELD / held) ** values["imbalance_spread"] * np.sqrt(np.log(ranks) / np.log(EXPERT_RANKS))
    usual = np.maximum(1 + (values["natural_imbalance"] - 1) * over, 1.0)
    hottest = np.minimum(usual if given is None else given, most_load(candidates))
    return np.where(unbalanced(candidates), hottest, 1.0)


def notify_s(candidates: Candidates, values: Constants) -> Floats:
    """Returns the time to exchange token counts before a dispatch: a small exchange and, unless an iteration is
    captured or buffers have a capacity, a wait of the host for its result. Backward reuses the counts."""
    ranks = candidates.ep * candidates.etp
    one = np.where(ranks <= domain_of(candidates), *latencies_s(candidates.base.hardware, values, "notify_us"))
    unwaited = candidates.whole_iteration | candidates.on("moe_expert_rank_capacity_factor")
    return np.where(ranks > 1, one * np.where(unwaited, PREPROCESS_CAPTURED, 1.0), 0.0)


def _merged(candidates: Candidates) -> Floats:
    """Returns the share of micro batches that EP overlap runs concurrently with another one; 0 without EP overlap. The
    warm-up forward passes of a pipeline, and as many backward passes at its end, run alone."""
    passes = candidates.microbatches * candidates.vpp
    alone = 1 + (candidates.pp - 1) + (candidates.vpp - 1) * candidates.group  # the mean over pipeline ranks
    share = np.clip(1 - alone / passes, 0.0, 1.0)
    result: Floats = np.where(candidates.on("overlap_moe_expert_parallel_comm"), share, 0.0)
    return result


def _overlaps_weights(candidates: Candidates, *, is_moe: bool) -> Flags:
    """Returns the rows whose backward dispatch is concurrent with the experts' weight gradients, which take as long as
    their forward pass (Megatron-Core's `overlap_dispatch_backward_with_experts_wgrad`)."""
    excluded = candidates.on("overlap_moe_expert_parallel_comm") | candidates.on("delay_wgrad_compute")
    result: Flags = candidates.on("overlap_dispatch_backward_with_experts_wgrad") & ~excluded & bool(is_moe)
    return result


def _recomputed(candidates: Candidates, forward: Forward) -> tuple[Floats, Floats]:
    """Returns (recomputed device seconds, share of layers that recompute dispatch and combine too) of one layer."""
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
    """Returns the share of layers under full recompute: all with `uniform`, the first ones of a stage with `block`."""
    layers = candidates.base.architecture.num_layers / candidates.pp / candidates.vpp
    block = candidates.number("recompute_num_layers", none=1.0) / layers
    return np.where(candidates.among("recompute_method", "block"), np.minimum(1.0, block), 1.0)


def _lists(name: str) -> Callable[[Any], bool]:
    """Returns a test for `name` in recompute modules; null modules mean core attention only, as in Megatron."""
    return lambda modules: name in (("core_attn",) if modules is None else modules)


def _tensor_parallel(candidates: Candidates, values: Constants, *, is_moe: bool) -> Floats:
    """Returns the seconds of gathers and scatters of hidden states around mixers, dense feed-forwards and shared
    experts, forward and backward."""
    model = candidates.base.architecture
    gb = candidates.tokens * (candidates.tp - 1) / candidates.tp * model.hidden_size * wide_bytes(candidates) / GB
    one_way = collective_s(candidates, values, gb, candidates.tp, stride=np.ones(())) * values["tp_time"]
    shares = class_shares(model, is_moe=is_moe)
    feeds = bool(model.moe_shared_expert_intermediate_size) if is_moe else shares.feed_forward
    return one_way * TP_COLLECTIVES * (shares.mixing + feeds) * (1 + TP_BACKWARD)


def _expert_tensor_parallel(candidates: Candidates, values: Constants) -> Floats:
    """Returns the seconds of one gather (or scatter) of the token copies on a rank among the ranks that share its
    experts, at an even load. Megatron's all-to-all dispatcher does this after dispatch and before combine; libraries
    that dispatch to all of these ranks send as much."""
    model = candidates.base.architecture
    copies = candidates.tokens / candidates.tp * float(model.moe_router_topk)
    gb = copies * (candidates.etp - 1) * expert_input(model) * wide_bytes(candidates) / GB
    return collective_s(candidates, values, gb, candidates.etp, stride=np.ones(())) * values["tp_time"]
