"""Words for settings without a flag: what a recipe says, and what does the same in a launch script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.values import knob_value

# (knob, value) → how a launch script starts ranks with it. Sources: torch/numa/binding.py, which needs GPUs; numactl(8)
STARTED_BY = {
    ("cpu_affinity", "spread"): "torchrun --numa-binding=exclusive (CPU ranks: numactl --physcpubind=CORES per rank)",
}


def settings_text(settings: Mapping[str, Any]) -> str:
    """Returns `recipe: cpu_affinity: spread; launch script: torchrun …`; empty without settings."""
    written = [f"{knob}: {knob_value(value)}" for knob, value in settings.items()]
    started = [STARTED_BY[setting] for setting in settings.items() if setting in STARTED_BY]
    parts = (("recipe", written), ("launch script", started))
    return "; ".join(f"{where}: {', '.join(words)}" for where, words in parts if words)


def variables_text(variables: Mapping[str, Any]) -> str:
    """Returns `NCCL_NVLS_ENABLE=0, without USE_MNNVL`; empty without variables."""
    return ", ".join(f"without {name}" if to is None else f"{name}={knob_value(to)}" for name, to in variables.items())
