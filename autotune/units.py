"""Names what throughput, memory and cost are counted per: a GPU, or a rank of a CPU recipe."""

from __future__ import annotations


def gpu_or_rank(gpu: str) -> str:
    """Returns `GPU`, or `rank` if the recipe's `gpu` is `cpu`."""
    return "rank" if gpu == "cpu" else "GPU"
