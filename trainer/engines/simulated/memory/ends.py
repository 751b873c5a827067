"""Allocations of the ends of the model: the embedding, the final norm, heads with their loss, and the input of
multi-token prediction.

Source: language_module.py, tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py and
multi_token_prediction.py of Megatron-Core 0.16.1.
"""

from __future__ import annotations

from trainer.engines.simulated.memory.sizes import FP32, MASK, Sizes
from trainer.engines.simulated.memory.tape import Op, Tape, Tensor
from trainer.model.parameters import table_parameters


def embedding(sizes: Sizes) -> Tape:
    """Returns the tape of the embedding, whose weight gradient is allocated in full before it is added to the
    buffer."""
    tape = Tape()
    entries = sizes.sequence_parallel_tokens * sizes.model.hidden_size
    tape.tensor("x", sizes.wide_tensor(entries))
    tape.tensor("tokens", Tensor(sizes.tokens * 8))  # int64 token ids
    tape.tensor("mask", Tensor(entries * MASK if sizes.dropout else 0.0))
    table = float(table_parameters(sizes.model, sizes.tp)) * sizes.wide
    tape.op(
        Op(reads=(), writes=("x",), saves=("tokens", "mask"), forward=sizes.gathered, backward=sizes.gathered + table)
    )
    return tape


def final_norm(sizes: Sizes) -> Tape:
    tape = Tape(first="x")
    entries = sizes.sequence_parallel_tokens * sizes.model.hidden_size
    tape.tensor("x", sizes.wide_tensor(entries))
    tape.tensor("statistics", Tensor(sizes.statistics))
    tape.tensor("normed", sizes.wide_tensor(entries))
    tape.op(Op(reads=("x",), writes=("normed",), saves=("x", "statistics")))
    return tape


def head(sizes: Sizes) -> Tape:
    """Returns the tape of the output head: logits, an fp32 copy that becomes the softmax in place, and its gradient in
    the training precision. With Megatron-Core's compiled loss each step of the computation allocates a new copy; with
    Transformer Engine's everything happens in the logits."""
    tape = Tape(first="x")
    tape.tensor("x", sizes.wide_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size))
    entries = sizes.tokens * float(table_parameters(sizes.model, sizes.tp)) / sizes.model.hidden_size
    fused = bool(sizes.recipe.knob("cross_entropy_loss_fusion"))
    in_place = fused and sizes.recipe.knob("cross_entropy_fusion_impl") == "te"
    tape.tensor("logits", Tensor(entries * sizes.wide, 0.0 if in_place else entries * sizes.wide))
    tape.tensor("softmax", Tensor(entries * FP32))
    tape.tensor("loss", Tensor(sizes.tokens * FP32, sizes.tokens * FP32))
    tape.op(Op(reads=("x",), writes=("logits",), saves=("x",), backward=sizes.gathered))
    kept = "logits" if in_place else "softmax"
    copies = entries * FP32 if fused and not in_place else 0.0
    tape.op(Op(reads=("logits",), writes=("loss",), saves=(kept,), forward=copies, backward=copies))
    return tape


def prediction_input(sizes: Sizes) -> Tape:
    """Returns the tape before an MTP layer: embedding of the next tokens, two norms, concatenation, and projection to
    the hidden size."""
    tape = Tape(first="x")
    entries = sizes.sequence_parallel_tokens * sizes.model.hidden_size
    for name in ("x", "embedded"):
        tape.tensor(name, sizes.wide_tensor(entries))
    tape.tensor("statistics", Tensor(2 * sizes.statistics))
    tape.tensor("pair", sizes.wide_tensor(2 * entries))
    tape.tensor("joined", sizes.wide_tensor(entries))
    table = float(table_parameters(sizes.model, sizes.tp)) * sizes.wide
    tape.op(Op(reads=(), writes=("embedded",), forward=sizes.gathered, backward=sizes.gathered + table))
    tape.op(Op(reads=("x", "embedded"), writes=("pair",), saves=("x", "embedded", "statistics")))
    kept = "pair"
    if sizes.quantized:
        kept = tape.tensor("pair_quantized", sizes.narrow_tensor(2 * entries))
    tape.op(Op(reads=("pair",), writes=("joined",), saves=(kept,), forward=sizes.gathered, linear=True))
    return tape
