"""The parts by which a rank's memory is shown, in drawing order, with their display names."""

from __future__ import annotations

# every part of MemoryTable.by_part; a part that is not here is shown last, by its own name
MEMORY_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "master_weights": "master weights",
    "optimizer": "optimizer state",
    "activations": "activations",
    "cuda_graphs": "activations in CUDA graphs",
    "logits": "logits and loss",
    "workspace": "workspace",
    "buffers": "library buffers",
}


def memory_order(names: list[str]) -> list[str]:
    """Returns these parts in drawing order."""
    return sorted(names, key=lambda name: list(MEMORY_PARTS).index(name) if name in MEMORY_PARTS else len(MEMORY_PARTS))
