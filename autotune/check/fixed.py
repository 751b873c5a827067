"""The nearest legal recipe as text: what `check --fix` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.looks.quantities import knob_value
from trainer.recipe import Recipe


def fixed_text(given: str, nearest: Recipe, changes: Mapping[str, tuple[Any, Any]]) -> str:
    """The recipe under a comment on what was changed; `given` is what it was read from."""
    said = [f"{name}: {knob_value(there)}, not {knob_value(here)}" for name, (here, there) in changes.items()]
    head = f"The nearest legal recipe to {' '.join(given.split())}" if said else f"{given}: nothing had to change"
    return "".join(f"# {line}\n" for line in (head, *said)) + nearest.to_yaml()
