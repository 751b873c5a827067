"""The mixers: one file each, found by being in this folder, with its `MIXER`.

Source: attention.py, multi_latent_attention.py, ssm/gated_delta_net.py, ssm/mamba_mixer.py of Megatron-Core 0.16.1.
What linear mixers keep is counted as the tensors that their kernels (`mamba_split_conv1d_scan_combined`,
`chunk_gated_delta_rule`) save; no measured run fixed them.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from trainer.model.mixer import Mixer


@cache
def mixers() -> dict[str, Mixer]:
    """Every mixer by the name that a layer has it by."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.MIXER.name: module.MIXER for module in modules}
