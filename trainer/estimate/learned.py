"""The calibration of one cluster, which `estimate` and `plan` can use instead of the tables' constants.

`policies/surrogate/learned.py` makes it from factors that bursts or a probe have updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trainer.estimate.candidates import Floats
from trainer.recipe.schema import Recipe


@dataclass(frozen=True, kw_only=True)
class LearnedParts:
    """Parts of the memory estimate that are `factor` times their estimate, ± `half_width` (90 %)."""

    parts: tuple[str, ...]
    factor: float
    half_width: float


@dataclass(frozen=True, kw_only=True)
class LearnedMemory:
    """Factors on memory.

    `uneven`: memory added where nothing forces a balance, relative to that of routed tokens at an even load; `outside`:
    factor on memory outside the allocator; `limit`: factor on the limit, if ranks ran out of memory below it.
    """

    groups: tuple[LearnedParts, ...] = ()
    uneven: float = 0.0
    uneven_half_width: float = 0.0
    outside: float = 1.0
    limit: float = 1.0

    def moved(self, by_part: Mapping[str, Floats], uneven_gib: Floats) -> dict[str, Floats]:
        """Returns the parts multiplied by their factors; `uneven_gib`: memory of routed tokens where nothing forces a
        balance."""
        parts = dict(by_part)
        for group in self.groups:
            parts |= {name: parts[name] * group.factor for name in group.parts if name in parts}
        return parts | {"activations": parts["activations"] + self.uneven * uneven_gib}

    def half_width_gib(self, by_part: Mapping[str, Floats], uneven_gib: Floats) -> Floats:
        """Returns the half width of the 90 % interval of the parts' sum, GiB, that follows from the factors'
        deviations; `by_part`: the parts as `moved` returns them."""
        each = [
            sum((by_part[name] for name in group.parts if name in by_part), np.zeros(()))
            * (group.half_width / group.factor)
            for group in self.groups
        ]
        squares = sum((gib**2 for gib in each), (self.uneven_half_width * uneven_gib) ** 2)
        half: Floats = np.sqrt(squares)
        return half


NO_MEMORY = LearnedMemory()  # no learned factors of memory


@dataclass(frozen=True, kw_only=True)
class LearnedCluster:
    """The learned constants of the step time; the same constants with each factor in turn at the upper end of its 90 %
    interval (`ends`); and factors on memory."""

    name: str
    constants: Mapping[str, float] = field(default_factory=dict)
    ends: tuple[Mapping[str, float], ...] = ()
    memory: LearnedMemory = NO_MEMORY

    def limit_gib(self, recipe: Recipe) -> float | None:
        """Returns the memory that a rank can fill, GiB; None if no limit is known."""
        limit = recipe.memory_limit_gib
        return None if limit is None else limit * self.memory.limit


TABLES = LearnedCluster(name="")  # the tables as they are: nothing was learned
