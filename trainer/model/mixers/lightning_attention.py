"""Lightning attention: linear attention with a fixed decay per head, a norm and an output gate, as in MiniMax-Text-01.

Source: modeling_minimax.py of transformers 5.23 (`MiniMaxLightningAttention`). Megatron-Core has neither such a layer
nor its FLOPs: counted are the GEMMs, and at least one write and one read of the state per token.
"""

from __future__ import annotations

from trainer.model.layer import LayerParameters, norm_parameters
from trainer.model.mixer import Mixer, SavedSizes, Scan, TensorModules, Tensors
from trainer.recipe.architecture import Architecture

STATE_PASSES = 2.0  # passes over the state: write, read
CHUNK = 256  # tokens per chunk (modeling_minimax.py: block_size)


def _width(model: Architecture) -> int:
    return model.linear_num_value_heads * model.linear_value_head_dim


def _parameters(model: Architecture) -> LayerParameters:
    """Returns the weights of queries, keys, values, gate and output, all of one width, and of a norm over that
    width."""
    hidden, width = model.hidden_size, _width(model)
    return LayerParameters(split=5 * hidden * width + width, whole=norm_parameters(model, hidden))


def _flops(model: Architecture, _: float) -> float:
    width = _width(model)
    return 5.0 * model.hidden_size * width + STATE_PASSES * width * model.linear_key_head_dim


def _saved(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns queries, keys and values (the scan's input), the scan's output, the gate, and the norm's output."""
    width = _width(model) / sizes.tp
    return {
        "lightning_read": 3 * width * sizes.wide_bytes,
        "lightning_gated": 2 * width * sizes.wide_bytes,
        "lightning_normed": width * sizes.narrow_bytes,
        "residual": model.hidden_size / sizes.sequence_parallel_ranks * sizes.wide_bytes,
        "attention_norm": model.hidden_size / sizes.sequence_parallel_ranks * sizes.narrow_bytes,
    }


def _scan(model: Architecture) -> Scan:
    """Returns the traffic of the chunks and their states, the norm and the gate."""
    width = _width(model)
    return Scan(elements=4 * width + 2 * width * model.linear_key_head_dim / CHUNK + 4 * width, exchanged=4 * width)


MIXER = Mixer(
    name="lightning_attention",
    parameters=_parameters,
    flops=_flops,
    saved=_saved,
    modules={
        "lightning_read": TensorModules(graph="attn"),  # queries, keys and values
        "lightning_gated": TensorModules(graph="attn"),  # the scan's output and its gate
        "lightning_normed": TensorModules(graph="attn"),  # the norm's output: input of the last projection
    },
    scan=_scan,
)
