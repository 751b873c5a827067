"""Allocations of token mixers (attention in its variants, gated delta net, Mamba), from tensor `x` to tensor `r`.

Source: attention.py, multi_latent_attention.py, ssm/ of Megatron-Core 0.16.1 and the tensors that Transformer Engine's
LayerNormLinear, Linear and DotProductAttention save; delta net and Mamba by their kernels (`chunk_gated_delta_rule`,
`mamba_split_conv1d_scan_combined`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from trainer.engines.simulated.memory.constants import constant
from trainer.engines.simulated.memory.sizes import FP32, MASK, Sizes
from trainer.engines.simulated.memory.tape import Modules, Op, Tape, Tensor
from trainer.model.layer import attention_channels
from trainer.model.mixers.mamba import MAMBA_EXPANSION
from trainer.recipe.layout import layout_of

ATTENTION, MAMBA = Modules(graph=("attn",)), Modules(graph=("mamba",))
POSITION = 8.0  # bytes per chosen position
OUTPUT = Modules(offload="attn_proj", graph=("attn",))
LATENT_NORM = Modules(recompute=("layernorm",), offload="qkv_linear", graph=("attn",))


def attention(tape: Tape, sizes: Sizes) -> None:
    """Adds attention from `x` to `r`, the residual addition included."""
    tape.first = _input(
        tape, sizes, Modules(graph=("attn",), offload="attn_norm" if sizes.model.multi_latent_attention else "")
    )
    if sizes.model.multi_latent_attention:
        _latent_inputs(tape, sizes)
    else:
        _direct_inputs(tape, sizes)
    if sizes.model.experimental_attention_variant == "dsa":
        _index(tape, sizes)
    _scores(tape, sizes)
    if sizes.model.attention_output_gate:
        _output_gate(tape, sizes)
    _projection(tape, sizes)


def fused_norm(tape: Tape, sizes: Sizes, read: str, write: str, modules: Modules) -> None:
    """Adds a norm fused with the linear layer after it; `write` must be a tensor already."""
    hidden = sizes.model.hidden_size
    normed = tape.tensor(f"{read}_normed", sizes.narrow_tensor(sizes.sequence_parallel_tokens * hidden, modules))
    statistics = tape.tensor(f"{read}_statistics", Tensor(sizes.statistics, 0.0, modules))
    tape.op(
        Op(
            reads=(read,),
            writes=(write,),
            saves=(read, normed, statistics),
            forward=sizes.gathered,
            backward=sizes.gathered * 2,  # the input gathered again, and the gradient before it is scattered
            linear=True,
        )
    )


def add_residual(tape: Tape, sizes: Sizes, branch: str, residual: str, sum_: str, modules: Modules) -> None:
    """Adds fused dropout and residual addition.

    Only the mask is kept; without dropout one gradient serves both inputs.
    """
    tape.tensor(sum_, sizes.wide_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size, modules))
    mask = tape.tensor(
        f"{sum_}_mask", Tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size * MASK, 0.0, modules)
    )
    saves = (mask,) if sizes.dropout else ()
    tape.op(Op(reads=(branch, residual), writes=(sum_,), saves=saves, through=True))


def branch(tape: Tape, sizes: Sizes, name: str) -> str:
    """Adds the output of a layer's branch, whose gradient is that of the sum if there is no dropout; returns its
    name."""
    return tape.tensor(
        name, sizes.wide_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size, grad=sizes.dropout)
    )


def _input(tape: Tape, sizes: Sizes, modules: Modules) -> str:
    return tape.tensor("x", sizes.wide_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size, modules))


def _direct_inputs(tape: Tape, sizes: Sizes) -> None:
    """Adds one projection of which keys, values and a gate stay views, unless another operation copies them."""
    model, tokens = sizes.model, sizes.tokens / sizes.tp
    query, key, value = attention_channels(model)
    gate = query if model.attention_output_gate else 0
    modules = Modules(offload="core_attn", graph=("attn",))
    tape.tensor("qkv", sizes.wide_tensor(tokens * (query + gate + key + value), modules))
    fused_norm(tape, sizes, "x", "qkv", Modules(offload="qkv_linear", graph=("attn",)))
    if model.qk_layernorm:
        tape.tensor("qk", sizes.wide_tensor(tokens * (query + key), modules))
        tape.op(Op(reads=("qkv",), writes=("qk",), saves=("qkv",)))


def _latent_inputs(tape: Tape, sizes: Sizes) -> None:
    """Adds latent queries, keys and values: compressed first, with norms fused into the up-projections."""
    model, along, tokens = sizes.model, sizes.sequence_parallel_tokens, sizes.tokens / sizes.tp
    query, key, value = attention_channels(model)
    rope = model.qk_pos_emb_head_dim or 0
    tape.tensor("normed", sizes.wide_tensor(along * model.hidden_size, LATENT_NORM))
    statistics = tape.tensor("x_statistics", Tensor(sizes.statistics, 0.0, ATTENTION))
    tape.op(Op(reads=("x",), writes=("normed",), saves=("x", statistics)))
    ranks = {"queries": model.q_lora_rank or 0, "keys": model.kv_lora_rank or 0}
    ups = {"queries": query, "keys": key - model.num_attention_heads * rope + value}
    for name, rank in ranks.items():
        straight = not rank
        width = rope * (name == "keys") + rank
        source = "normed"
        if not straight:
            source = tape.tensor(f"latent_{name}", sizes.wide_tensor(along * width, ATTENTION))
            tape.op(Op(reads=("normed",), writes=(source,), saves=_kept_input(tape, sizes, name), linear=True))
        tape.tensor(f"up_{name}", sizes.wide_tensor(tokens * ups[name], ATTENTION))
        saves = _kept_input(tape, sizes, name) if straight else (source, _normed_latent(tape, sizes, name, rank))
        gathered = 0.0 if straight or along == sizes.tokens else sizes.tokens * rank * sizes.wide
        tape.op(
            Op(reads=(source,), writes=(f"up_{name}",), saves=saves, forward=gathered, backward=gathered, linear=True)
        )
    # inputs of attention after the rotation: new queries and keys, contiguous values
    read = Modules(recompute=("mla_up_proj",), offload="core_attn", graph=("attn",))
    tape.tensor("qkv", sizes.wide_tensor(tokens * (query + key + value), read))
    tape.op(Op(reads=("up_queries", "up_keys"), writes=("qkv",)))


def _normed_latent(tape: Tape, sizes: Sizes, name: str, rank: int) -> str:
    modules = Modules(recompute=("mla_up_proj",), graph=("attn",))
    return tape.tensor(f"normed_{name}", sizes.narrow_tensor(sizes.sequence_parallel_tokens * rank, modules))


def _kept_input(tape: Tape, sizes: Sizes, name: str) -> tuple[str, ...]:
    """Returns the names of the tensors that a projection of the hidden states saves as its input: the norm's output, or
    a quantized copy."""
    if not sizes.quantized:
        return ("normed",)
    copy = sizes.narrow_tensor(sizes.sequence_parallel_tokens * sizes.model.hidden_size, LATENT_NORM)
    return (tape.tensor(f"quantized_{name}", copy),)


def _scores(tape: Tape, sizes: Sizes) -> None:
    """Adds core attention. Fused, it keeps its inputs, its output and a log-sum-exp; unfused, every score."""
    model, tokens = sizes.model, sizes.tokens / sizes.tp
    query, key, value = attention_channels(model)
    width = value if model.multi_latent_attention else query
    reads = ("qk", "qkv") if model.qk_layernorm and not model.multi_latent_attention else ("qkv",)
    tape.tensor("o", sizes.wide_tensor(tokens * width, OUTPUT))
    ring = tokens * (key + value) * sizes.wide * 2 if layout_of(sizes.recipe).cp > 1 else 0.0
    if sizes.keeps_scores:
        score = _unfused_scores(tape, sizes)
        saves, workspace = (*reads, "softmax"), score
    else:
        modules = Modules(recompute=("core_attn",), graph=("attn",))
        tape.tensor("softmax", Tensor(tokens * model.num_attention_heads * FP32, 0.0, modules))
        saves, workspace = (*reads, "o", "softmax"), 0.0
        if sizes.quantized and sizes.recipe.knob("fp8_dot_product_attention"):
            read = tape.tensors["qkv"].modules
            eights = tape.tensor("attention_fp8", Tensor(tokens * (query + key + value + width), 0.0, read))
            saves = (eights, "softmax")
    tape.op(
        Op(reads=reads, writes=("o",), saves=saves, forward=workspace + ring, backward=2 * workspace + ring),
    )


def _index(tape: Tape, sizes: Sizes) -> None:
    """Adds the indexer: queries, key and weights, and the positions that it chose; no gradient passes through them."""
    model = sizes.model
    heads, width = model.dsa_indexer_n_heads or 0, model.dsa_indexer_head_dim or 0
    chosen = min(model.dsa_indexer_topk or 0, sizes.recipe.training.seq_length) * POSITION
    read = (heads * width + width + heads) * sizes.wide
    tape.tensor("index", Tensor(sizes.tokens * (read + chosen), 0.0, ATTENTION))
    tape.op(Op(reads=("normed",), writes=("index",), saves=("normed", "index")))


def _unfused_scores(tape: Tape, sizes: Sizes) -> float:
    """Returns the bytes of one tensor of scores. Kept are their softmax and, with dropout, the mask and its result."""
    dropout = sizes.model.attention_dropout > 0
    heads = sizes.tokens * sizes.model.num_attention_heads / sizes.tp
    square = heads * sizes.recipe.training.seq_length / layout_of(sizes.recipe).cp
    size = square * (sizes.wide + (sizes.wide + MASK) * dropout)
    modules = Modules(recompute=("core_attn",), offload="core_attn", graph=("attn",))
    tape.tensor("softmax", Tensor(size, 0.0, modules))
    return square * sizes.wide


def _output_gate(tape: Tape, sizes: Sizes) -> None:
    query = attention_channels(sizes.model)[0]
    tape.tensor("gated", sizes.wide_tensor(sizes.tokens / sizes.tp * query, OUTPUT))
    tape.op(Op(reads=("o", "qkv"), writes=("gated",), saves=("o", "qkv")))


def _projection(tape: Tape, sizes: Sizes) -> None:
    """Adds the output projection, whose saved input is attention's output itself; only delayed scaling keeps a
    quantized copy as well."""
    read = tape.last
    saves: tuple[str, ...] = (read,)
    if sizes.quantized and sizes.delayed_scaling:
        entries = tape.tensors[read].size / sizes.wide
        saves = (tape.tensor("projected_quantized", sizes.narrow_tensor(entries, ATTENTION)),)
    branch(tape, sizes, "projected")
    tape.op(
        Op(
            reads=(read,),
            writes=("projected",),
            saves=saves,
            forward=sizes.gathered,
            backward=sizes.gathered,
            linear=True,
        )
    )
    add_residual(tape, sizes, "projected", "x", "r", ATTENTION)


def gated_delta_net(tape: Tape, sizes: Sizes) -> None:
    """Adds a gated delta net from `x` to `r`: projection, convolution, delta rule by chunks, gated norm, projection."""
    model, tokens = sizes.model, sizes.tokens / sizes.tp
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim
    values = model.linear_num_value_heads * model.linear_value_head_dim
    tape.first = _input(tape, sizes, ATTENTION)
    entries = {
        "delta_projected": keys + 2 * values + 2 * model.linear_num_value_heads,
        "delta_convolved": keys + values,
        "delta_read": 3 * values,  # queries and keys normed and repeated to the heads of the values
        "delta_chunks": model.linear_num_value_heads * constant("delta_chunk"),
        "delta_output": values,
        "delta_normed": values,
    }
    for name, width in entries.items():
        make = sizes.narrow_tensor if name == "delta_normed" and sizes.quantized else sizes.wide_tensor
        tape.tensor(name, make(tokens * width, ATTENTION))
    fused_norm(tape, sizes, "x", "delta_projected", ATTENTION)
    _save_and_write(tape, "delta_projected", "delta_convolved")
    _save_and_write(tape, "delta_convolved", "delta_read")
    _save_and_write(tape, "delta_read", "delta_output", "delta_chunks")
    _save_and_write(tape, "delta_output", "delta_normed")
    _last_projection(tape, sizes, "delta_normed", ATTENTION)


def mamba(tape: Tape, sizes: Sizes) -> None:
    """Adds Mamba-2 from `x` to `r`: projection; convolution, scan and gate in one kernel that recomputes inside; norm;
    projection."""
    model, tokens = sizes.model, sizes.tokens / sizes.tp
    heads = model.mamba_num_heads or MAMBA_EXPANSION * model.hidden_size // model.mamba_head_dim
    inner, groups = heads * model.mamba_head_dim, 2 * model.mamba_num_groups * model.mamba_state_dim
    tape.first = _input(tape, sizes, MAMBA)
    for name, width in {"mamba_projected": 2 * inner + groups + heads, "mamba_scanned": inner}.items():
        tape.tensor(name, sizes.wide_tensor(tokens * width, MAMBA))
    make = sizes.narrow_tensor if sizes.quantized else sizes.wide_tensor
    tape.tensor("mamba_normed", make(tokens * inner, MAMBA))
    states = tokens / constant("mamba_chunk") * inner * model.mamba_state_dim * FP32
    convolved = tokens * (inner + groups) * sizes.wide
    fused_norm(tape, sizes, "x", "mamba_projected", MAMBA)
    tape.op(
        Op(
            reads=("mamba_projected",),
            writes=("mamba_scanned",),
            saves=("mamba_projected", "mamba_scanned"),
            forward=states + convolved,
            backward=2 * (states + convolved),
        )
    )
    _save_and_write(tape, "mamba_scanned", "mamba_normed")
    _last_projection(tape, sizes, "mamba_normed", MAMBA)


def lightning_attention(tape: Tape, sizes: Sizes) -> None:
    """Adds lightning attention from `x` to `r`: projection, scan, norm, gate, projection."""
    width = sizes.model.linear_num_value_heads * sizes.model.linear_value_head_dim
    _chain(tape, sizes, {"lightning_projected": 4 * width, "lightning_scanned": width, "lightning_normed": width})


def mamba1(tape: Tape, sizes: Sizes) -> None:
    """Adds Mamba-1 from `x` to `r`: projection, convolution, projections of step sizes and states, scan, gate,
    projection."""
    model = sizes.model
    inner = MAMBA_EXPANSION * model.hidden_size
    steps = (model.mamba_dt_rank or model.hidden_size // 16) + 2 * model.mamba_state_dim
    widths = {"mamba1_projected": 2 * inner, "mamba1_chosen": 2 * inner + steps, "mamba1_scanned": inner}
    _chain(tape, sizes, widths | {"mamba1_gated": inner})


def compressed_attention(ratio: int) -> Callable[[Tape, Sizes], None]:
    """Returns the function that adds DeepSeek-V4's attention with one key per `ratio` positions; 0: only a window."""

    def add(tape: Tape, sizes: Sizes) -> None:
        model = sizes.model
        head = model.v_head_dim or 0
        queries = model.num_attention_heads * head
        windows, index = (2, model.dsa_indexer_head_dim or 0) if ratio == 4 else (1, 0)
        keys = 2 * windows * (head + index) + index * (model.dsa_indexer_n_heads or 0) if ratio else 0
        widths = {
            "compressed_latents": sizes.tp * (2 * (model.q_lora_rank or 0) + 2 * head + keys),
            "compressed_queries": queries,
            "compressed_output": queries,
            "compressed_groups": (model.o_groups or 0) * (model.o_lora_rank or 0),
        }
        _chain(tape, sizes, widths)

    return add


def _chain(tape: Tape, sizes: Sizes, widths: Mapping[str, float]) -> None:
    """Adds a mixer from `x` to `r` whose tensors have these widths (over all tensor-parallel ranks), each computed from
    the previous one."""
    tape.first = _input(tape, sizes, ATTENTION)
    names = list(widths)
    for name, width in widths.items():
        make = sizes.narrow_tensor if name == names[-1] and sizes.quantized else sizes.wide_tensor
        tape.tensor(name, make(sizes.tokens / sizes.tp * width, ATTENTION))
    fused_norm(tape, sizes, "x", names[0], ATTENTION)
    for read, write in pairwise(names):
        _save_and_write(tape, read, write)
    _last_projection(tape, sizes, names[-1], ATTENTION)


def _save_and_write(tape: Tape, read: str, write: str, *others: str) -> None:
    tape.op(Op(reads=(read,), writes=(write,), saves=(read, *others)))


def _last_projection(tape: Tape, sizes: Sizes, read: str, modules: Modules) -> None:
    branch(tape, sizes, "projected")
    tape.op(
        Op(
            reads=(read,),
            writes=("projected",),
            saves=(read,),
            forward=sizes.gathered,
            backward=sizes.gathered,
            linear=True,
        )
    )
    add_residual(tape, sizes, "projected", "x", "r", modules)


def nothing(tape: Tape, sizes: Sizes) -> None:
    """Adds nothing: the mixer of a layer of a hybrid model that only has a feed-forward, whose input the second norm
    reads."""


MIXERS: dict[str, Callable[[Tape, Sizes], None]] = {
    "attention": attention,
    "dsa": attention,
    "csa": compressed_attention(4),
    "hca": compressed_attention(128),
    "window_attention": compressed_attention(0),
    "lightning_attention": lightning_attention,
    "mamba1": mamba1,
    "gated_delta_net": gated_delta_net,
    "mamba": mamba,
    "none": nothing,
}
