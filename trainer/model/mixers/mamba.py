"""Mamba-2: a convolution and a selective scan; the first norm is fused with the projection."""

from __future__ import annotations

from trainer.model.layer import LayerParameters, norm_parameters
from trainer.model.mixer import Mixer, SavedSizes, Scan, TensorModules, Tensors
from trainer.recipe.architecture import Architecture

MAMBA_EXPANSION = 2  # ratio of inner to hidden width if the heads are not given (mamba_mixer.py: expand)
MAMBA_CONVOLUTION = 4  # width of its causal convolution (mamba_mixer.py: d_conv)
MAMBA_CHUNK = 128  # tokens per chunk of its scan (mamba_mixer.py: chunk_size)
SCAN_PASSES = 3.5  # passes over Mamba's state, as weights per token: 7 operations each in the published count


def _sizes(model: Architecture) -> tuple[int, int, int]:
    """Returns (heads, inner width, width of B and C together)."""
    heads = model.mamba_num_heads or MAMBA_EXPANSION * model.hidden_size // model.mamba_head_dim
    return heads, heads * model.mamba_head_dim, 2 * model.mamba_num_groups * model.mamba_state_dim


def _parameters(model: Architecture) -> LayerParameters:
    hidden = model.hidden_size
    heads, inner, states = _sizes(model)
    projections = hidden * (2 * inner + states + heads) + inner * hidden
    convolution = (inner + states) * (MAMBA_CONVOLUTION + 1)  # with bias
    own = 3 * heads + inner  # dt_bias, A_log, D by head; the gated norm
    return LayerParameters(split=projections + convolution + own, whole=norm_parameters(model, hidden))


def _flops(model: Architecture, _: float) -> float:
    """Returns FLOPs per token as weights.

    Published counts use an inner width of twice the hidden size, for any heads.
    """
    hidden, inner = model.hidden_size, 2 * model.hidden_size
    heads = model.mamba_num_heads or inner // model.mamba_head_dim
    states = 2 * model.mamba_num_groups * model.mamba_state_dim
    return hidden * (3 * inner + states + heads) + SCAN_PASSES * inner * model.mamba_state_dim


def _saved(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns the outputs of the projection, of the scan, of its gate and of the norm."""
    wide, hidden = sizes.wide_bytes, model.hidden_size / sizes.sequence_parallel_ranks
    heads, inner, states = _sizes(model)
    return {
        "mamba_projected": (2 * inner + states + heads) / sizes.tp * wide,
        "mamba_scanned": 2 * inner / sizes.tp * wide,
        "mamba_normed": inner / sizes.tp * sizes.narrow_bytes,
        "residual": hidden * wide,
        "attention_norm": hidden * sizes.narrow_bytes,
    }


def _scan(model: Architecture) -> Scan:
    """Returns the traffic of the convolution and the scan, the states of chunks in fp32, and the gated norm."""
    heads, inner, states = _sizes(model)
    chunks = 4 * inner * model.mamba_state_dim / MAMBA_CHUNK
    return Scan(
        elements=2 * (inner + states) + (2 * inner + states) + chunks + 3 * inner, exchanged=3 * inner + states + heads
    )


MIXER = Mixer(
    name="mamba",
    parameters=_parameters,
    flops=_flops,
    saved=_saved,
    modules={
        # output of Mamba's first projection: input of its convolution and scan
        "mamba_projected": TensorModules(graph="mamba"),
        # outputs of the scan and of its gate
        "mamba_scanned": TensorModules(graph="mamba"),
        # output of Mamba's own norm: input of its last projection
        "mamba_normed": TensorModules(graph="mamba"),
    },
    scan=_scan,
)
