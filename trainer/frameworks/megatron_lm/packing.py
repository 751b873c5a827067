"""Flags of Megatron-LM whose data are packed sequences with their boundaries (`cu_seqlens`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.launch_scripts.argv import split

# Read in 0.16.1 to main: training/datasets/sft_dataset.py, rl/sequence_packing_utils.py; the last in main only
PACKING = ("--sft", "--rl-use-sequence-packing", "--dataloader-inter-document-masking")


def packing_flags(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the flags of a command that pack sequences."""
    written = {each.flag for each in split(command)}
    return tuple(flag for flag in PACKING if flag in written)


def packing_values(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of arguments, as a log lists them, that pack sequences."""
    names = (flag.removeprefix("--").replace("-", "_") for flag in PACKING)
    return tuple(name for name in names if values.get(name))
