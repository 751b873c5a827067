"""No mixer: a layer of a hybrid model that has a feed-forward block only."""

from __future__ import annotations

from trainer.model.layer import LayerParameters
from trainer.model.mixer import Mixer

MIXER = Mixer(
    name="none",
    parameters=lambda model: LayerParameters(),
    flops=lambda model, seen: 0.0,
    saved=lambda model, sizes: {},
    modules={},
)
