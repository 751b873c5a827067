"""Allocations of feed-forward blocks, dense and MoE (router, dispatch, experts, combine), from tensor `r` to tensor
`y`. Source: mlp.py, moe/ of Megatron-Core 0.16.1 and the tensors that Transformer Engine's LayerNormLinear and
GroupedLinear save. With the memory-efficient permutation, probabilities act inside the activation, so that experts'
outputs are not kept."""

from __future__ import annotations

from collections.abc import Callable

from trainer.engines.simulated.memory.mixers import add_residual, branch, fused_norm
from trainer.engines.simulated.memory.sizes import FP32, INDEX, MASK, Sizes
from trainer.engines.simulated.memory.tape import Modules, Op, Tape, Tensor
from trainer.model.layer import dense_width, expert_width
from trainer.recipe.layout import layout_of

DENSE, ROUTER = Modules(graph=("mlp",)), Modules(graph=("moe", "moe_router"))
AGAIN_DENSE = Modules(recompute=("mlp",), graph=("mlp",))
AGAIN_SHARED = Modules(recompute=("moe", "shared_experts"), graph=("moe", "moe_router"))
AGAIN_ROUTER = Modules(recompute=("moe",), graph=("moe", "moe_router"))
AGAIN = Modules(recompute=("moe",), graph=("moe",))
ALL_GATHER, FLEX = "allgather", "flex"


def dense(tape: Tape, sizes: Sizes) -> None:
    """Adds a dense block, from `r` to `y`; the norm is fused with the first linear layer."""
    _residual(tape, sizes, DENSE)
    width = sizes.tokens * dense_width(sizes.model) / sizes.tp
    gate = 2 if sizes.model.gated_linear_unit else 1
    tape.tensor("dense_hidden", sizes.wide_tensor(width * gate, AGAIN_DENSE))
    tape.tensor("dense_active", sizes.wide_tensor(width, AGAIN_DENSE))
    fused_norm(tape, sizes, "r", "dense_hidden", AGAIN_DENSE)
    tape.op(Op(reads=("dense_hidden",), writes=("dense_active",), saves=("dense_hidden",)))
    branch(tape, sizes, "fed")
    _linear(tape, sizes, "dense_active", "fed", width, AGAIN_DENSE, gathered=sizes.gathered)
    add_residual(tape, sizes, "fed", "r", "y", DENSE)


def experts(tape: Tape, sizes: Sizes) -> None:
    """Adds an MoE block, from `r` to `y`: norm, router, shared experts, dispatch, experts, combine."""
    _residual(tape, sizes, Modules(offload="mlp_norm", graph=ROUTER.graph))
    norm = Modules(recompute=("layernorm",), graph=ROUTER.graph)
    tape.tensor("normed_again", sizes.wide_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size, norm))
    statistics = tape.tensor("r_statistics", Tensor(sizes.statistics, 0.0, ROUTER))
    tape.op(Op(reads=("r",), writes=("normed_again",), saves=("r", statistics)))
    outputs = ["combined"]
    if sizes.model.moe_shared_expert_intermediate_size:
        _shared(tape, sizes)
        outputs.append("shared")
    _router(tape, sizes)
    _dispatch(tape, sizes)
    _experts(tape, sizes)
    _combine(tape, sizes)
    if len(outputs) > 1:
        branch(tape, sizes, "fed")
        tape.op(Op(reads=("combined", "shared"), writes=("fed",)))
    add_residual(tape, sizes, "fed" if len(outputs) > 1 else "combined", "r", "y", Modules(graph=("moe",)))


def _residual(tape: Tape, sizes: Sizes, modules: Modules) -> None:
    """Adds `r`, the input of the second norm; it is the layer's own input if the layer has no mixer."""
    tape.tensor("r", sizes.wide_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size, modules))
    tape.first = tape.first or "r"


def _linear(
    tape: Tape,
    sizes: Sizes,
    read: str,
    write: str,
    entries: float,
    modules: Modules,
    *,
    gathered: float = 0.0,
    original: bool = False,
) -> None:
    """Adds a linear layer from `read` to `write`; `original`: it saves its input itself instead of a quantized copy."""
    kept = read
    if sizes.quantized and not original:
        kept = tape.tensor(f"{read}_quantized", sizes.narrow_tensor(entries, modules))
    tape.op(Op(reads=(read,), writes=(write,), saves=(kept,), forward=gathered, backward=gathered, linear=True))


def _shared(tape: Tape, sizes: Sizes) -> None:
    model = sizes.model
    width = sizes.tokens * (model.moe_shared_expert_intermediate_size or 0) / sizes.tp
    gate = 2 if model.gated_linear_unit else 1
    tape.tensor("shared_hidden", sizes.wide_tensor(width * gate, AGAIN_SHARED))
    tape.tensor("shared_active", sizes.wide_tensor(width, AGAIN_SHARED))
    # the linear layer saves the norm's output itself, which router and permutation keep anyway
    _linear(tape, sizes, "normed_again", "shared_hidden", 0.0, AGAIN_SHARED, gathered=sizes.gathered, original=True)
    tape.op(Op(reads=("shared_hidden",), writes=("shared_active",), saves=("shared_hidden",)))
    branch(tape, sizes, "shared")
    _linear(tape, sizes, "shared_active", "shared", width, AGAIN_SHARED, gathered=sizes.gathered)


def _router(tape: Tape, sizes: Sizes) -> None:
    """Adds the router: logits, scores and probabilities of every expert in fp32 (or fp64, as its dtype), and the
    routing map; no scores if fused."""
    count = sizes.sequence_parallel_tokens * (sizes.model.num_moe_experts or 0)
    tensors = 2 if sizes.recipe.knob("moe_router_fusion") else 3
    wide = 2 if sizes.recipe.knob("moe_router_dtype") == "fp64" else 1
    tape.tensor("router_scores", Tensor(count * (tensors * FP32 * wide + MASK), 0.0, AGAIN_ROUTER))
    tape.tensor("probabilities", Tensor(count * FP32, count * FP32))
    tape.op(Op(reads=("normed_again",), writes=("probabilities",), saves=("normed_again", "router_scores")))


def _dispatch(tape: Tape, sizes: Sizes) -> None:
    """Adds the dispatch of tokens to the ranks of their experts, and the sort by expert."""
    seen = sizes.model.moe_latent_size or sizes.model.hidden_size
    kind, apart = sizes.recipe.knob("moe_token_dispatcher_type"), _group(sizes) > 1
    tape.tensor("expert_tokens", sizes.wide_tensor(sizes.routed * seen, expert_modules(sizes, "expert_fc1")))
    tape.tensor("rows", Tensor((sizes.sent + sizes.routed) * 2 * INDEX, 0.0, AGAIN))
    source = "normed_again"
    if sizes.model.moe_latent_size:
        source = tape.tensor("latent", sizes.wide_tensor(sizes.sequence_parallel_tokens * seen, AGAIN))
        tape.op(Op(reads=("normed_again",), writes=("latent",), saves=("normed_again",), linear=True))
    if apart:
        if kind == ALL_GATHER:  # gathers into a buffer of the process: see `outside.py`
            tape.tensor("sent", Tensor(0.0, _gathered_tokens(sizes) * seen * sizes.wide))
        if kind not in (ALL_GATHER, FLEX):
            tape.tensor("sent", sizes.wide_tensor(sizes.sent * seen))
        if kind != FLEX:
            tape.op(Op(reads=(source, "probabilities"), writes=("sent",), remote=kind == ALL_GATHER))
            source = "sent"
        if kind != ALL_GATHER:
            tape.tensor("received", sizes.wide_tensor(_arriving(sizes) * seen))
            tape.op(Op(reads=(source,), writes=("received",), remote=True))
            source = "received"
    tape.op(Op(reads=(source,), writes=("expert_tokens",), saves=("rows",)))


def _group(sizes: Sizes) -> int:
    layout = layout_of(sizes.recipe)
    return layout.ep * layout.etp


def _gathered_tokens(sizes: Sizes) -> float:
    return sizes.sequence_parallel_tokens * _group(sizes)


def _arriving(sizes: Sizes) -> float:
    """Returns the rows that arrive on a rank.

    Flex dispatchers send a token once per rank, however many of its experts are there.
    """
    flex = sizes.recipe.knob("moe_token_dispatcher_type") == FLEX
    return min(sizes.routed, _gathered_tokens(sizes)) if flex else sizes.routed


def expert_modules(sizes: Sizes, offload: str, *recompute: str) -> Modules:
    """Returns the modules of the experts' tensors. Experts that are fused into one operation are offloaded together."""
    fused = bool(sizes.recipe.knob("use_transformer_engine_op_fuser"))
    return Modules(recompute=("moe", *recompute), offload="fused_group_mlp" if fused else offload, graph=("moe",))


def _experts(tape: Tape, sizes: Sizes) -> None:
    """Adds two grouped GEMMs around an activation that applies the probabilities.

    Their inputs are kept as they are, quantized, or in pages of the stash.
    """
    model = sizes.model
    seen, width = model.moe_latent_size or model.hidden_size, expert_width(model) / layout_of(sizes.recipe).etp
    first, hidden = expert_modules(sizes, "expert_fc1"), expert_modules(sizes, "moe_act")
    active = expert_modules(sizes, "", "moe_act")
    source = _weighted(tape, sizes, seen) if sizes.recipe.knob("moe_apply_probs_on_input") else "expert_tokens"
    rows, wide = width * (2 if model.gated_linear_unit else 1), sizes.wide
    tape.tensor("expert_hidden", sizes.wide_tensor(sizes.routed * rows, hidden))
    kept = _copied(tape, sizes, source, seen * sizes.narrow, first)
    tape.op(Op(reads=(source,), writes=("expert_hidden",), saves=(kept,), linear=True))
    kept = _stashed(tape, sizes, "expert_hidden", rows * wide, hidden)
    tape.tensor("expert_active", sizes.wide_tensor(sizes.routed * width, active))
    _activation(tape, sizes, kept, width, active)
    tape.tensor("expert_output", sizes.wide_tensor(sizes.routed * seen))
    kept = _copied(tape, sizes, "expert_active", width * sizes.narrow, active)
    tape.op(Op(reads=("expert_active",), writes=("expert_output",), saves=(kept,), linear=True))


def _weighted(tape: Tape, sizes: Sizes, seen: int) -> str:
    """Adds the multiplication by probabilities before the experts, in fp32, which keeps both factors; returns the
    result's name."""
    modules = expert_modules(sizes, "expert_fc1")
    product = sizes.routed * seen * FP32
    tape.tensor("weighted_tokens", sizes.wide_tensor(sizes.routed * seen, modules))
    tape.op(
        Op(
            reads=("expert_tokens",),
            writes=("weighted_tokens",),
            saves=("expert_tokens",),
            forward=product,
            backward=product,
        )
    )
    return "weighted_tokens"


def _copied(tape: Tape, sizes: Sizes, name: str, row_bytes: float, modules: Modules) -> str:
    """Adds the tensor that a GEMM saves of its input; returns its name."""
    if not sizes.quantized:
        return _stashed(tape, sizes, name, row_bytes, modules)
    return tape.tensor(f"{name}_quantized", Tensor(sizes.stashed * row_bytes, 0.0, modules))


def _stashed(tape: Tape, sizes: Sizes, name: str, row_bytes: float, modules: Modules) -> str:
    """Returns the name of the tensor itself, or of its pages in the stash."""
    if sizes.stashed == sizes.routed:
        return name
    return tape.tensor(f"{name}_pages", Tensor(sizes.stashed * row_bytes, 0.0, modules))


def _activation(tape: Tape, sizes: Sizes, kept: str, width: float, modules: Modules) -> None:
    """Adds the activation.

    For gated units and with `use_fused_weighted_squared_relu` it is fused with the probabilities; else their product is
    computed in fp32 and the activation kept as well.
    """
    rows = sizes.routed
    weights = tape.tensor("routed_probabilities", Tensor(rows * FP32, 0.0, AGAIN))
    if sizes.model.gated_linear_unit or sizes.model.use_fused_weighted_squared_relu:
        tape.op(Op(reads=("expert_hidden",), writes=("expert_active",), saves=(kept, weights)))
        return
    tape.tensor("unweighted", sizes.wide_tensor(rows * width, modules))
    tape.op(Op(reads=("expert_hidden",), writes=("unweighted",), saves=(kept,)))
    unweighted, product = _stashed(tape, sizes, "unweighted", width * sizes.wide, modules), rows * width * FP32
    tape.op(
        Op(
            reads=("unweighted",),
            writes=("expert_active",),
            saves=(unweighted, weights),
            forward=product,
            backward=product,
        )
    )


def _combine(tape: Tape, sizes: Sizes) -> None:
    """Adds the combine: outputs are sent to the ranks of their tokens and summed there."""
    seen = sizes.model.moe_latent_size or sizes.model.hidden_size
    kind, apart = sizes.recipe.knob("moe_token_dispatcher_type"), _group(sizes) > 1
    source = "expert_output"
    if apart and kind == ALL_GATHER:
        tape.tensor("unpermuted", sizes.wide_tensor(_gathered_tokens(sizes) * seen))
        tape.op(Op(reads=(source,), writes=("unpermuted",)))
        source = "unpermuted"
    elif apart:
        tape.tensor("unsorted", sizes.wide_tensor(_arriving(sizes) * seen))
        tape.op(Op(reads=(source,), writes=("unsorted",)))
        source = "unsorted"
        if kind != FLEX:
            tape.tensor("returned", sizes.wide_tensor(sizes.sent * seen))
            tape.op(Op(reads=(source,), writes=("returned",), remote=True))
            source = "returned"
    branch(tape, sizes, "combined")
    if sizes.model.moe_latent_size:
        latent = tape.tensor("latent_output", sizes.wide_tensor(sizes.sequence_parallel_tokens * seen, AGAIN))
        tape.op(Op(reads=(source,), writes=(latent,), remote=apart and kind != "alltoall"))
        tape.op(Op(reads=(latent,), writes=("combined",), saves=(latent,), linear=True))
        return
    tape.op(Op(reads=(source,), writes=("combined",), remote=apart and kind != "alltoall"))


def nothing(tape: Tape, sizes: Sizes) -> None:
    """Adds nothing: the feed-forward of a layer of a hybrid model that only mixes tokens."""


FEEDS: dict[str, Callable[[Tape, Sizes], None]] = {"dense": dense, "moe": experts, "none": nothing}
