"""Bytes of activations that one layer keeps for backward, for one token, by closed form.

Counted as the tensors Megatron-Core saves, with the memory-efficient permutation (router probabilities applied inside
the activation, so that expert outputs are not kept). `activations.csv` says which module recomputes or offloads a
tensor. "A token" is one of the rank's share of the sequence (sequence / CP). Shapes: [N], or [] where all rows share
one value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.memory.state import quantizes
from trainer.model.layer import dense_width, expert_input, expert_width
from trainer.model.mixer import MASK_BYTES, SavedSizes, Tensors
from trainer.model.mixers import mixers
from trainer.recipe.architecture import Architecture, LayerKind
from trainer.recipe.tables import read_table, words

TABLE, MODULES = "activations.csv", ("recompute", "offload", "graph", "routed")
ROUTER_TENSORS = 3.0  # logits, scores and probabilities, all in fp32, of every expert


@cache
def tensor_table() -> dict[str, dict[str, str]]:
    """Returns the rows of `activations.csv` and of the mixers, by tensor."""
    rows = {
        row["tensor"]: {column: words(row, column, table=TABLE) for column in MODULES}
        for row in read_table(TABLE, package="trainer.estimate.memory")
    }
    own = {
        name: asdict(modules) | {"routed": ""} for each in mixers().values() for name, modules in each.modules.items()
    }
    return rows | own


def kinds_of(model: Architecture, *, is_moe: bool) -> list[LayerKind]:
    """Returns the kind of every layer with experts, or of every one without; attention's if the model has none."""
    kinds = [kind for kind, moe in zip(model.layer_kinds, model.moe_layers, strict=True) if moe == is_moe]
    return kinds or [LayerKind("attention", "moe" if is_moe else "dense")]


def saved_by_tensor(candidates: Candidates, *, is_moe: bool, kinds: Sequence[LayerKind] = ()) -> Tensors:
    """Returns the bytes per token that one layer, with experts or without, saves of each tensor, before recompute and
    offload. For a hybrid model it is the mean over layers of that kind, as in `layer_parameters`, or over `kinds`."""
    model = candidates.base.architecture
    kinds = kinds or kinds_of(model, is_moe=is_moe)
    mean: Tensors = {}
    sizes = _sizes(candidates)
    for kind, times in Counter(kinds).items():
        for name, size in (mixers()[kind.mixer].saved(model, sizes) | FEEDS[kind.feed](candidates)).items():
            mean[name] = mean.get(name, np.zeros(())) + size * (times / len(kinds))
    return mean


def _sizes(candidates: Candidates) -> SavedSizes:
    return SavedSizes(
        tp=candidates.tp,
        sequence_parallel_ranks=sequence_parallel_ranks(candidates),
        wide_bytes=wide_bytes(candidates),
        narrow_bytes=narrow_bytes(candidates),
        seq_length=candidates.number("seq_length"),
        keeps_scores=keeps_scores(candidates),
        quantizes=quantizes(candidates),
        delayed_scaling=candidates.among("precision", "fp8_delayed"),
    )


def wide_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes of one entry of the tensors that stay in the training precision."""
    return np.where(candidates.among("precision", "fp32"), 4.0, 2.0)


def narrow_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes per entry of a linear layer's saved input, which FP8 and FP4 quantize; NVFP4 adds one scale per
    16 entries."""
    fp4 = np.where(candidates.among("precision", "nvfp4"), 0.5 + 1 / 16, 1.0)
    return np.where(quantizes(candidates), fp4, wide_bytes(candidates))


def sequence_parallel_ranks(candidates: Candidates) -> Floats:
    """Returns TP where sequence parallelism divides the tokens between tensor-parallel regions, else 1."""
    return np.where(candidates.on("sequence_parallel"), candidates.tp, 1.0)


def keeps_scores(candidates: Candidates) -> Flags:
    """Returns [N]: true where attention is unfused; for a CPU's local layers `unfused` of `estimate.py` counts it."""
    local = candidates.among("transformer_impl", "local") & (not candidates.base.hardware.is_cpu)
    return local | candidates.among("attention_backend", "unfused", "local")


def _second_residual(candidates: Candidates) -> Tensors:
    model = candidates.base.architecture
    hidden = model.hidden_size / sequence_parallel_ranks(candidates)
    return {
        "mlp_residual": hidden * wide_bytes(candidates),
        "mlp_dropout_mask": hidden * MASK_BYTES * (model.hidden_dropout > 0),
    }


def _dense(candidates: Candidates) -> Tensors:
    model = candidates.base.architecture
    width = dense_width(model) / candidates.tp
    gate = 2 if model.gated_linear_unit else 1
    return _second_residual(candidates) | {
        "mlp_norm_fused": model.hidden_size / sequence_parallel_ranks(candidates) * narrow_bytes(candidates),
        "dense_hidden": gate * width * wide_bytes(candidates),
        "dense_activation": width * narrow_bytes(candidates),
    }


def _experts(candidates: Candidates) -> Tensors:
    model = candidates.base.architecture
    wide, narrow = wide_bytes(candidates), narrow_bytes(candidates)
    gate = 2 if model.gated_linear_unit else 1
    shared = (model.moe_shared_expert_intermediate_size or 0) / candidates.tp
    copies = copies_of_a_token(candidates)
    width = expert_width(model) / candidates.etp
    unfused = not model.gated_linear_unit and not model.use_fused_weighted_squared_relu
    return _second_residual(candidates) | {
        "mlp_norm": model.hidden_size / sequence_parallel_ranks(candidates) * wide,
        "shared_hidden": gate * shared * wide,
        "shared_activation": shared * narrow,
        "router": (model.num_moe_experts or 0)
        * (4 * ROUTER_TENSORS + MASK_BYTES)
        / sequence_parallel_ranks(candidates),
        "expert_input": copies * expert_input(model) * narrow,
        "latent_output": (model.moe_latent_size or 0) / sequence_parallel_ranks(candidates) * narrow,
        "expert_hidden": copies * gate * width * wide,
        "expert_unweighted": copies * width * wide * unfused,
        "expert_activation": copies * width * narrow,
    }


def _nothing(candidates: Candidates) -> Tensors:
    return {}


FEEDS: dict[str, Callable[[Candidates], Tensors]] = {"dense": _dense, "moe": _experts, "none": _nothing}


def copies_of_a_token(candidates: Candidates) -> Floats:
    """Returns the tokens that this rank's experts process, at an even load, per token of its own before sequence
    parallelism splits them."""
    padded = candidates.on("moe_pad_expert_input_to_capacity")
    capacity = np.where(padded, candidates.number("moe_expert_capacity_factor", none=1.0), 1.0)
    return (
        candidates.base.architecture.moe_router_topk * candidates.etp / sequence_parallel_ranks(candidates) * capacity
    )


# column of the table -> (the knob that lists modules, what null means, when the knob acts)
ACTING: dict[str, tuple[str, tuple[str, ...], Callable[[Candidates], Flags]]] = {
    "recompute": ("recompute_modules", ("core_attn",), lambda c: c.among("recompute_granularity", "selective")),
    "offload": ("offload_modules", (), lambda c: c.on("fine_grained_activation_offloading")),
    "graph": (
        "cuda_graph_scope",
        ("attn", "mlp", "moe"),  # whole layers
        lambda c: ~c.among("cuda_graph_impl", "none", "full_iteration"),
    ),
}


def named(candidates: Candidates, column: str) -> dict[str, Flags]:
    """Returns, by tensor, the rows where selective recompute drops it, fine-grained offload (`offload`) moves it, or
    CUDA graphs (`graph`) own it, depending on `column`."""
    knob, default, acts = ACTING[column]
    switch = acts(candidates)
    rows = {tensor: row[column] for tensor, row in tensor_table().items()}
    by_modules = {
        modules: switch & candidates.where(knob, _names_any_of(modules.split(), default))
        for modules in set(rows.values())
    }
    return {tensor: by_modules[modules] for tensor, modules in rows.items()}


def _names_any_of(modules: list[str], default: tuple[str, ...]) -> Callable[[tuple[str, ...] | None], bool]:
    return lambda words: not set(modules).isdisjoint(default if words is None else words)


def select(tensors: Tensors, flags: dict[str, Flags]) -> Tensors:
    return {name: np.where(flags[name], size, 0.0) for name, size in tensors.items()}


def kept(candidates: Candidates, saved: Tensors) -> Tensors:
    """Returns the bytes of `saved` that stay on the device after selective recompute and fine-grained offload."""
    recomputed, offloaded = named(candidates, "recompute"), named(candidates, "offload")
    return {name: np.where(recomputed[name] | offloaded[name], 0.0, size) for name, size in saved.items()}


def total(tensors: Tensors) -> Floats:
    return sum(tensors.values(), np.zeros(()))


def routed(tensors: Tensors) -> Floats:
    """Returns the sum of the tensors that grow with the load of this rank's experts."""
    return sum((size for name, size in tensors.items() if tensor_table()[name]["routed"]), np.zeros(()))
