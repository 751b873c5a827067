"""Model FLOPs to train on one token, as Megatron's throughput line counts them.

Six per weight of every GEMM that a token passes (multiply and add, in the forward pass and twice in the backward pass),
plus attention over the positions it sees: half the sequence on average, or its window. No norms, no router, no
recompute. Source: Megatron-LM `num_floating_point_operations`; checked against the ratios of published TFLOPS to
tokens/s. arXiv 2603.07685 counts the router too (DeepSeek-V3: +0.25 %).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from trainer.model.layer import dense_width, expert_input, expert_width, mlp_matrices, windowed_mean
from trainer.model.mixers import mixers
from trainer.recipe.architecture import Architecture, LayerKind

FLOPS_PER_WEIGHT = 6.0


@dataclass(frozen=True, kw_only=True)
class LayerFlops:
    """FLOPs to train on one token: of each decoder layer, of one MTP layer, of the output head."""

    layers: tuple[float, ...]
    mtp: float
    head: float


@cache
def layer_flops(model: Architecture, seq_length: int) -> LayerFlops:
    kinds = list(zip(model.layer_kinds, model.windowed_layers, strict=True))
    each = {
        (kind, windowed): FLOPS_PER_WEIGHT * _layer(model, kind, _seen(model, seq_length, windowed=windowed))
        for kind, windowed in set(kinds)
    }
    mtp = _layer(model, model.mtp_kind, seq_length / 2)
    return LayerFlops(
        layers=tuple(each[kind] for kind in kinds),
        mtp=FLOPS_PER_WEIGHT * (mtp + 2 * model.hidden_size**2),
        head=FLOPS_PER_WEIGHT * model.hidden_size * model.vocab_size,
    )


def _layer(model: Architecture, kind: LayerKind, seen: float) -> float:
    """Returns the weights that one token is multiplied with in a layer; attention scores count as weights."""
    return mixers()[kind.mixer].flops(model, seen) + FEEDS[kind.feed](model)


def model_flops_per_token(model: Architecture, seq_length: int) -> float:
    """Returns the FLOPs to train on one token, MTP layers and their heads included."""
    flops, mtp = layer_flops(model, seq_length), model.mtp_num_layers or 0
    return sum(flops.layers) + mtp * flops.mtp + (1 + mtp) * flops.head


@cache  # every table of a search asks for the same model's
def attended(model: Architecture, seq_length: int) -> tuple[float, ...]:
    """Returns the positions a token attends to in each layer, on average: fewer in a window layer, 0 in a layer without
    attention."""
    layers = zip(model.layer_kinds, model.windowed_layers, strict=True)
    return tuple(_attended(model, kind, seq_length, windowed=windowed) for kind, windowed in layers)


def _attended(model: Architecture, kind: LayerKind, seq_length: int, *, windowed: bool) -> float:
    mixer = mixers()[kind.mixer]
    if mixer.positions is not None:
        return mixer.positions(model, seq_length)
    return _seen(model, seq_length, windowed=windowed) if mixer.attends else 0.0


def mean_attended(model: Architecture, seq_length: int) -> float:
    """Returns the positions a token attends to, averaged over all layers."""
    return sum(attended(model, seq_length)) / model.num_layers


def _seen(model: Architecture, seq_length: int, *, windowed: bool) -> float:
    """Returns the positions a token attends to, on average over a causal sequence."""
    if not windowed or model.window_size is None or model.window_size[0] <= 0:
        return seq_length / 2
    return windowed_mean(model.window_size[0], seq_length)


def _dense(model: Architecture) -> float:
    return mlp_matrices(model) * model.hidden_size * dense_width(model)


def _moe(model: Architecture) -> float:
    hidden, seen = model.hidden_size, expert_input(model)
    routed = model.moe_router_topk * seen * expert_width(model)
    shared = hidden * (model.moe_shared_expert_intermediate_size or 0)
    latent = 2 * hidden * seen if model.moe_latent_size else 0
    return mlp_matrices(model) * (routed + shared) + latent


FEEDS: dict[str, Callable[[Architecture], float]] = {"dense": _dense, "moe": _moe, "none": lambda _: 0.0}
