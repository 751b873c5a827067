"""One layer of a model: its parameters by how ranks share them, and its widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from trainer.recipe.architecture import Architecture


@dataclass(frozen=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer by how ranks share them. Whole numbers, except for the mean layer of a hybrid model.

    `split` over TP; `whole` on every TP rank (norms, router, MLA's compressions); `experts` over EP and ETP (experts
    with biases are only legal with ETP 1, which would not split all of them). `whole_linear`: those of `whole` that are
    weights of linear layers.
    """

    split: float = 0
    experts: float = 0
    whole: float = 0
    whole_linear: float = 0

    @property
    def total(self) -> float:
        return self.split + self.experts + self.whole

    def __add__(self, other: LayerParameters) -> LayerParameters:
        return each_field(sum, [self, other])

    def dense_of_rank(self, tp: Any) -> Any:
        """Returns the parameters outside the experts that a rank holds; `tp` is a number or an array of any shape."""
        return self.split / tp + self.whole

    def experts_of_rank(self, ep: Any, etp: Any) -> Any:
        """Returns the expert parameters that a rank holds; `ep` and `etp` are numbers or arrays of one shape."""
        return self.experts / (ep * etp)


def each_field(combine: Callable[[list[float]], float], layers: Sequence[LayerParameters]) -> LayerParameters:
    """Returns the layer whose every field is `combine` of that field of the layers."""
    return LayerParameters(
        **{field.name: combine([getattr(layer, field.name) for layer in layers]) for field in fields(LayerParameters)}
    )


def attention_channels(model: Architecture) -> tuple[int, int, int]:
    """Returns the widths of queries, keys and values over all heads, as they enter attention."""
    heads = model.num_attention_heads
    if model.multi_latent_attention:
        qk = (model.qk_head_dim or 0) + (model.qk_pos_emb_head_dim or 0)
        return heads * qk, heads * qk, heads * (model.v_head_dim or 0)
    each = model.kv_channels or model.hidden_size // heads
    groups = model.num_query_groups or heads
    return heads * each, groups * each, groups * each


def windowed_mean(window: float, seq_length: float) -> float:
    """Returns the positions a token attends to, on average over a causal sequence, if it sees `window` of them at
    most."""
    return window - window * window / (2 * seq_length) if window < seq_length else seq_length / 2


def dense_width(model: Architecture) -> int:
    return model.ffn_hidden_size or 4 * model.hidden_size


def expert_width(model: Architecture) -> int:
    return model.moe_ffn_hidden_size or dense_width(model)


def expert_input(model: Architecture) -> int:
    """Returns the width of the routed experts' input: the latent width if the model has one, else the hidden size."""
    return model.moe_latent_size or model.hidden_size


def norm_parameters(model: Architecture, width: int) -> int:
    """Returns the number of parameters of a norm over `width` channels: weights, and biases if it has them."""
    return width * (2 if model.normalization == "LayerNorm" else 1)


def mlp_matrices(model: Architecture) -> int:
    """Returns the number of matrices of a feed-forward block: up and down, and a gate if the model has one."""
    return 3 if model.gated_linear_unit else 2
