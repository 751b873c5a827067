"""Gated delta net: a convolution and the gated delta rule; the first norm is fused with the projection."""

from __future__ import annotations

from trainer.model.layer import LayerParameters, norm_parameters
from trainer.model.mixer import Mixer, SavedSizes, Scan, TensorModules, Tensors
from trainer.recipe.architecture import Architecture

DELTA_PASSES = 4.0  # passes over the state of gated delta net: decay, read, write, query
DELTA_CHUNK = 64  # tokens per chunk of the gated delta rule, which keeps one matrix per head and chunk


def _parameters(model: Architecture) -> LayerParameters:
    hidden, heads = model.hidden_size, model.linear_num_value_heads
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim  # keys and queries, equally wide
    values = heads * model.linear_value_head_dim
    projections = hidden * (keys + 2 * values + 2 * heads) + values * hidden  # values and their gate; beta and alpha
    convolution = (keys + values) * model.linear_conv_kernel_dim
    norms = norm_parameters(model, model.linear_value_head_dim) + norm_parameters(model, hidden)
    return LayerParameters(split=projections + convolution + 2 * heads, whole=norms)  # dt_bias and A_log by head


def _flops(model: Architecture, _: float) -> float:
    heads = model.linear_num_value_heads
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim
    values = heads * model.linear_value_head_dim
    convolution = (keys + values) * model.linear_conv_kernel_dim
    state = DELTA_PASSES * values * model.linear_value_head_dim  # Megatron's counter assumes keys as wide as values
    return model.hidden_size * (keys + 3 * values + 2 * heads) + convolution + state


def _saved(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns the inputs of the convolution and of the norms of queries and keys; the inputs of the delta rule (queries
    and keys repeated for each head of the values); its output, the gate and the norm's output."""
    wide, hidden = sizes.wide_bytes, model.hidden_size / sizes.sequence_parallel_ranks
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim
    values = model.linear_num_value_heads * model.linear_value_head_dim
    chunks = model.linear_num_value_heads * DELTA_CHUNK
    return {
        "delta_convolved": (2 * keys + values) / sizes.tp * wide,
        "delta_read": (3 * values + chunks) / sizes.tp * wide,
        "delta_gated": 3 * values / sizes.tp * wide,
        "delta_normed": values / sizes.tp * sizes.narrow_bytes,
        "residual": hidden * wide,
        "attention_norm": hidden * sizes.narrow_bytes,
    }


def _scan(model: Architecture) -> Scan:
    """Returns the traffic of the convolution, the norms of queries and keys, the intermediates of the rule's kernels
    (WY representation per value head), the states of chunks, and the gated norm."""
    heads, key, value = model.linear_num_value_heads, model.linear_key_head_dim, model.linear_value_head_dim
    keys, values = 2 * model.linear_num_key_heads * key, heads * value
    chunks = 2 * heads * key * value / DELTA_CHUNK
    return Scan(
        elements=2 * (keys + values) + 2 * keys + 8 * values + chunks + 3 * values,
        exchanged=keys + 3 * values + 2 * heads,
        chunk=DELTA_CHUNK,
    )


MIXER = Mixer(
    name="gated_delta_net",
    parameters=_parameters,
    flops=_flops,
    saved=_saved,
    modules={
        # inputs of the convolution, and queries and keys before their norms
        "delta_convolved": TensorModules(graph="attn"),
        # inputs of the gated delta rule
        "delta_read": TensorModules(graph="attn"),
        # output of the rule and its gate
        "delta_gated": TensorModules(graph="attn"),
        # output of its norm: input of its last projection
        "delta_normed": TensorModules(graph="attn"),
    },
    scan=_scan,
)
