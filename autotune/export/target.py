"""What an export target is: a name on the command line and a pure function from a recipe to text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Target:
    """`render` says everything of the recipe that the target can express, and names in comments what it cannot."""

    name: str
    render: Callable[[Recipe], str]
