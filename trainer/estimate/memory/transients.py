"""Bytes that live for a short time: logits and loss, the gradients of one layer, tensors that recompute brings back.

Shapes: [N] bytes per token of the rank's share of the sequence, or [] where all rows share one value.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.activations import (
    copies_of_a_token,
    keeps_scores,
    named,
    select,
    sequence_parallel_ranks,
    total,
    wide_bytes,
)
from trainer.estimate.memory.constants import constant
from trainer.model.layer import expert_input
from trainer.model.mixer import Tensors

FP32 = 4.0


def logits(candidates: Candidates) -> tuple[Floats, Floats]:
    """Returns the bytes per token of vocabulary-sized tensors of the last stage: (at the loss of one head, kept by
    every other head).

    They are logits in the training precision, an fp32 copy, in which the softmax is computed, and its gradient in the
    training precision in place of the copy. Megatron-LM's native fusion compiles the same steps out of place and keeps
    one more fp32 tensor (golden_runs.csv: 0.38 GiB with TP 2); Transformer Engine's works on the logits in place.
    """
    model = candidates.base.architecture
    wide = wide_bytes(candidates)
    fused = candidates.on("cross_entropy_loss_fusion")
    in_place = fused & candidates.among("cross_entropy_fusion_impl", "te")
    fp32_copies = np.where(in_place, 0.0, np.where(fused, 2 * FP32, FP32))
    vocabulary = model.vocab_size / candidates.tp
    return (wide + fp32_copies) * vocabulary, np.where(in_place, wide, FP32) * vocabulary * np.ones(())


def backward_of_a_layer(candidates: Candidates, saved: Tensors, *, is_moe: bool) -> Floats:
    """Returns the bytes per token of gradients alive while the widest module of a layer runs backward: those of its
    inputs and outputs."""
    wide = wide_bytes(candidates)
    model = candidates.base.architecture
    hidden = model.hidden_size * wide
    scores = model.num_attention_heads / candidates.tp * candidates.number("seq_length") * keeps_scores(candidates)
    read = saved.get("up_projected" if model.multi_latent_attention else "queries_keys_values", np.zeros(()))
    attention = read + saved.get("attention_output", np.zeros(())) + 2 * scores * wide
    if not is_moe:
        return np.maximum(attention, 1.5 * saved.get("dense_hidden", np.zeros(())) + hidden)
    experts = saved["expert_hidden"] * 1.5 + copies_of_a_token(candidates) * expert_input(model) * wide
    return np.maximum(attention, experts + dispatch(candidates))


def dispatch(candidates: Candidates) -> Floats:
    """Returns the bytes per token of the buffers of one dispatch or combine, sent and received; 0 without EP and ETP.
    An all-gather receives all ranks' tokens."""
    hidden = expert_input(candidates.base.architecture) * wide_bytes(candidates)
    gathered = candidates.ep * candidates.etp / sequence_parallel_ranks(candidates)
    exchanged = 2 * copies_of_a_token(candidates)
    apart = (candidates.ep > 1) | (candidates.etp > 1)
    gathers = candidates.among("moe_token_dispatcher_type", "allgather")
    return hidden * apart * np.where(gathers, 2 * gathered, exchanged)


def rebuilt(candidates: Candidates, saved: Tensors, left: Tensors) -> Floats:
    """Returns the bytes per token rebuilt at a time in backward: all layers of a checkpoint with full recompute, else
    one layer's recomputed and offloaded tensors and the layers whose offloaded tensors are being loaded."""
    full = candidates.among("recompute_granularity", "full")
    uniform = ~candidates.among("recompute_method", "block")
    layers = np.where(uniform, candidates.number("recompute_num_layers", none=1.0), 1.0)
    moved = total(select(saved, named(candidates, "offload")))
    on_the_way = (constant("offload_layers") - 1) * moved  # one layer's are in use, the next one's are loaded
    return np.where(full, layers * total(saved), total(saved) - total(left) + on_the_way)
