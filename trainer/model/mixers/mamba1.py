"""Mamba-1: a convolution, a selective scan with one step size per channel, and a gate, as in Jamba.

Source: modeling_jamba.py of transformers 5.23 (`JambaMambaMixer`). Megatron-Core has Mamba-2 only; the scan counts the
operations that Megatron's FLOPs counter gives Mamba-2's.
"""

from __future__ import annotations

from math import ceil

from trainer.model.layer import LayerParameters, norm_parameters
from trainer.model.mixer import Mixer, SavedSizes, Scan, TensorModules, Tensors
from trainer.model.mixers.mamba import MAMBA_CONVOLUTION, MAMBA_EXPANSION, SCAN_PASSES
from trainer.recipe.architecture import Architecture

HIDDEN_OF_RANK = 16  # ratio of hidden size to the rank of the step sizes, if that is not given


def _sizes(model: Architecture) -> tuple[int, int]:
    """Returns the inner width, and the joint width of step sizes, B and C."""
    rank = model.mamba_dt_rank or ceil(model.hidden_size / HIDDEN_OF_RANK)
    return MAMBA_EXPANSION * model.hidden_size, rank + 2 * model.mamba_state_dim


def _products(model: Architecture) -> int:
    """Returns the weights of the projections: input, (step sizes, B, C), step sizes, output."""
    inner, chosen = _sizes(model)
    steps = chosen - 2 * model.mamba_state_dim
    return model.hidden_size * 3 * inner + inner * chosen + steps * inner


def _parameters(model: Architecture) -> LayerParameters:
    inner, chosen = _sizes(model)
    # convolution with its bias; A_log, D and the bias of the step sizes
    own = inner * (MAMBA_CONVOLUTION + 1) + inner * (model.mamba_state_dim + 2)
    return LayerParameters(
        split=_products(model) + own, whole=norm_parameters(model, chosen) + norm_parameters(model, model.hidden_size)
    )


def _flops(model: Architecture, _: float) -> float:
    inner, _chosen = _sizes(model)
    return _products(model) + inner * (MAMBA_CONVOLUTION + SCAN_PASSES * model.mamba_state_dim)


def _saved(model: Architecture, sizes: SavedSizes) -> Tensors:
    """Returns the outputs of the projection and the convolution, step sizes, B and C, and the scan's output before and
    after its gate."""
    inner, chosen = _sizes(model)
    return {
        "mamba1_projected": 2 * inner / sizes.tp * sizes.wide_bytes,
        "mamba1_chosen": (2 * inner / sizes.tp + chosen) * sizes.wide_bytes,
        "mamba1_scanned": inner / sizes.tp * sizes.wide_bytes,
        "mamba1_gated": inner / sizes.tp * sizes.narrow_bytes,
        "residual": model.hidden_size / sizes.sequence_parallel_ranks * sizes.wide_bytes,
        "attention_norm": model.hidden_size / sizes.sequence_parallel_ranks * sizes.narrow_bytes,
    }


def _scan(model: Architecture) -> Scan:
    """Returns the traffic of the convolution, the scan (its states stay in registers), the step sizes and the gate."""
    inner, chosen = _sizes(model)
    return Scan(elements=8 * inner + chosen, exchanged=3 * inner)


MIXER = Mixer(
    name="mamba1",
    parameters=_parameters,
    flops=_flops,
    saved=_saved,
    modules={
        "mamba1_projected": TensorModules(graph="mamba"),  # inputs of the convolution, and the gate
        "mamba1_chosen": TensorModules(graph="mamba"),  # output of the convolution, step sizes, B and C
        "mamba1_scanned": TensorModules(graph="mamba"),  # output of the scan
        "mamba1_gated": TensorModules(graph="mamba"),  # input of the last projection
    },
    scan=_scan,
)
