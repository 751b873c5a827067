"""Mixers: each file of this folder defines one as `MIXER`.

Source: attention.py, multi_latent_attention.py, ssm/gated_delta_net.py, ssm/mamba_mixer.py of Megatron-Core 0.16.1.
Saved tensors of linear mixers are those that their kernels (`mamba_split_conv1d_scan_combined`,
`chunk_gated_delta_rule`) save; no measured run confirms them.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from trainer.model.mixer import Mixer


@cache
def mixers() -> dict[str, Mixer]:
    """Returns every mixer by its name in a model's layers."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.MIXER.name: module.MIXER for module in modules}
