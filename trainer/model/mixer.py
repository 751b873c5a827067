"""Defines `Mixer`, of which each file of `mixers/` makes one instance: its parameters, FLOPs and saved tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.model.layer import LayerParameters
from trainer.recipe.architecture import Architecture

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MASK_BYTES = 1.0  # bytes of one entry of a dropout mask
Tensors = dict[str, Floats]  # bytes per token of one layer, by tensor


@dataclass(frozen=True, kw_only=True)
class SavedSizes:
    """Columns of candidates that decide the size of saved tensors: [N], or [] if all rows share one value."""

    tp: Floats
    sequence_parallel_ranks: Floats  # TP with sequence parallelism, else 1
    wide_bytes: Floats  # bytes of one entry that stays in the training precision
    narrow_bytes: Floats  # bytes of one entry of an input of a linear layer
    seq_length: Floats
    keeps_scores: Flags  # true for unfused attention
    quantizes: Flags
    delayed_scaling: Flags


@dataclass(frozen=True, kw_only=True)
class TensorModules:
    """Modules, as named in a list knob, that recompute, offload or capture a saved tensor."""

    recompute: str = ""  # words separated by spaces, as in the next two fields
    offload: str = ""
    graph: str = ""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Forward work of one token in a mixer's own kernels: they read and write `elements` of 16 bits between its
    projections. `exchanged` channels go to the ranks of their heads and back if ranks share the sequence. `chunk`: the
    tokens of a chunk, if a kernel takes a head's state from chunk to chunk of a sequence; 0 if none does."""

    elements: float
    exchanged: float
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """One token mixer of a layer, its first norm included.

    `flops` returns the weights that one token is multiplied with, scores counted as weights, if it attends to the given
    number of positions, as Megatron's counter does. `modules` has every tensor of `saved` except those that all mixers
    keep (`activations.csv`) and those of the mixer it extends. `positions` returns the positions that a token of a
    causal sequence attends to on average, if they differ from the counter's. `scan` is the work of kernels other than
    attention between its projections. `not_priced` names work that the step time leaves out because no measurement
    gives its rate.
    """

    name: str
    parameters: Callable[[Architecture], LayerParameters]
    flops: Callable[[Architecture, float], float]
    saved: Callable[[Architecture, SavedSizes], Tensors]
    modules: dict[str, TensorModules]
    attends: bool = False  # true if a token attends to the positions before it
    positions: Callable[[Architecture, float], float] | None = None
    scan: Callable[[Architecture], Scan] | None = None
    not_priced: str = ""

    @property
    def captured_by(self) -> str:
        """Returns the CUDA graph scope that captures this mixer."""
        return next((tensor.graph for tensor in self.modules.values() if tensor.graph), "attn")
