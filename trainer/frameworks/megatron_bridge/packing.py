"""Settings of Megatron-Bridge datasets that pack several sequences into one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# switches and a length, read in training/config.py of 0.3.1 to 0.6.2: the first two up to 0.5.0, the others since 0.6
PACKING = frozenset(
    (
        "dataset.packed_sequence_specs.packed_sequence_size",
        "dataset.pack_sequences_in_batch",
        "dataset.enable_offline_packing",
        "dataset.enable_in_batch_packing",
    )
)


def packing_paths(settings: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Returns the paths, among (path, value) of a configuration, that pack sequences."""
    return tuple(path for path, value in settings if path in PACKING and isinstance(value, int) and value > 0)
