"""Estimates the exchange between context ranks around attention, and how much of it attention hides.

`a2a` exchanges heads for sequence among all context ranks, `p2p` passes keys and values around a ring of them, and
`a2a+p2p` does both: all-to-all among neighbours, and a ring of their groups. Source: Transformer Engine,
attention/dot_product_attention/context_parallel.py. Shapes: [N], seconds of one layer and micro batch.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.activations import wide_bytes
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.links import GB, all_to_all_s, collective_s, ring_s
from trainer.estimate.time.work import Forward
from trainer.model.layer import attention_channels
from trainer.model.mixers import mixers
from trainer.model.shares import model_shares

HIERARCHICAL = "a2a+p2p"
TINY = 1e-9  # share of layers with attention where none has it, against division by zero


def all_to_all_ranks(candidates: Candidates) -> Floats:
    """Returns the number of neighbouring context ranks over which heads are distributed; 1 without an all-to-all."""
    sizes = candidates.column("hierarchical_context_parallel_sizes")
    first = sizes.each(lambda written: float(written[0]) if written else 1.0)
    whole = np.where(candidates.among("cp_comm_type", "a2a"), candidates.cp, 1.0)
    return np.where(candidates.among("cp_comm_type", HIERARCHICAL), np.minimum(first, candidates.cp), whole)


def context_parallel_s(candidates: Candidates, values: Constants, forward: Forward) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds of the exchange between context ranks, forward and backward.

    An all-to-all is exposed: queries, keys and values before attention, outputs after it, the same for gradients. A
    step of the ring receives the keys and values (in backward their gradients too) that attention uses in the next
    step: causal halves are balanced, so that every step takes as long and hides as much. At least the
    share `cp_exposed` of the ring's time is exposed. `all_gather` moves every rank's keys and values before attention.
    """
    model = candidates.base.architecture
    query, key, value = attention_channels(model)
    output = value if model.multi_latent_attention else query
    shares = model_shares(model)
    each = candidates.tokens / candidates.tp * wide_bytes(candidates) / GB
    kept, stride = each * (key + value), candidates.tp
    among = all_to_all_ranks(candidates)
    exchanged = 2 * all_to_all_s(candidates, values, each * (query + key + value + output), among, stride=stride)
    whole, exposed = _ring(candidates, values, forward, kept, among, max(shares.attention, TINY))
    gathers = candidates.among("cp_comm_type", "all_gather")
    gathered = 3 * ring_s(candidates, values, candidates.cp * kept, candidates.cp, stride=stride)
    heads = sum(
        (share * _mixer_all_to_all_s(candidates, values, each, name) for name, share in shares.scans.items()),
        np.zeros(()),
    )
    whole, exposed = (
        shares.attention * np.where(gathers, gathered, exchanged + ring) + heads for ring in (whole, exposed)
    )
    return values["cp_time"] * whole, values["cp_time"] * exposed


def _mixer_all_to_all_s(candidates: Candidates, values: Constants, gb: Floats, mixer: str) -> Floats:
    """Returns the seconds of a linear mixer's all-to-alls, for any exchange of attention (mamba_context_parallel.py):
    heads for sequence before the mixer and back after it, the same for gradients. `gb`: one channel of a rank's
    tokens."""
    scan = mixers()[mixer].scan
    assert scan is not None
    return 2 * all_to_all_s(
        candidates, values, gb * scan(candidates.base.architecture).exchanged, candidates.cp, stride=candidates.tp
    )


def _ring(
    candidates: Candidates, values: Constants, forward: Forward, kept_gb: Floats, among: Floats, attends: float
) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds to pass each rank's keys and values, `kept_gb`, around the ring of the groups of
    `among` ranks, in one layer with attention. `forward` is that of the mean layer, `attends` the share of layers with
    attention."""
    steps = candidates.cp / among
    ring = np.where(steps > 1, candidates.cp, 1.0)
    once = collective_s(candidates, values, kept_gb, ring, stride=candidates.tp)
    hops = np.maximum(steps - 1, 0.0)
    beyond = np.maximum(once - forward.attention / attends / steps, 0.0)
    beyond = beyond + np.maximum(2 * once - forward.attention_backward / attends / steps, 0.0)
    whole = 3 * hops * once
    return whole, np.maximum(hops * beyond, values["cp_exposed"] * whole)
