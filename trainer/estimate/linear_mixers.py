"""Bytes a token that layers without attention keep for backward: Mamba-2 and gated delta net.

Counted as the tensors that Megatron-Core's ssm/mamba_mixer.py and ssm/gated_delta_net.py and their kernels
(`mamba_split_conv1d_scan_combined`, `chunk_gated_delta_rule`) save; no measured run fixed them. Shapes: [N] or [].
"""

from __future__ import annotations

from trainer.estimate.candidates import Candidates, Floats
from trainer.model.parameters import MAMBA_EXPANSION

DELTA_CHUNK = 64  # tokens a chunk of the gated delta rule, whose products by head are kept


def mamba_entries(candidates: Candidates) -> dict[str, Floats]:
    """Entries of the training precision: the projected, the scanned, the gated and its norm's output."""
    model = candidates.base.architecture
    heads = model.mamba_num_heads or MAMBA_EXPANSION * model.hidden_size // model.mamba_head_dim
    inner = heads * model.mamba_head_dim
    states = 2 * model.mamba_num_groups * model.mamba_state_dim
    return {
        "mamba_projected": (2 * inner + states + heads) / candidates.tp,
        "mamba_scanned": 2 * inner / candidates.tp,
        "mamba_normed": inner / candidates.tp,
    }


def delta_net_entries(candidates: Candidates) -> dict[str, Floats]:
    """Entries of the training precision: into the convolution and the norms of queries and keys; what the rule reads,
    queries and keys repeated to the heads of the values; its output, the gate and the norm's output."""
    model = candidates.base.architecture
    keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim
    values = model.linear_num_value_heads * model.linear_value_head_dim
    chunks = model.linear_num_value_heads * DELTA_CHUNK
    return {
        "delta_convolved": (2 * keys + values) / candidates.tp,
        "delta_read": (3 * values + chunks) / candidates.tp,
        "delta_gated": 3 * values / candidates.tp,
        "delta_normed": values / candidates.tp,
    }
