"""What throughput, memory and cost of a recipe are counted for one of."""

from __future__ import annotations


def share_of(gpu: str) -> str:
    """`GPU`, or `rank` where a recipe's `gpu` is the CPU."""
    return "rank" if gpu == "cpu" else "GPU"
