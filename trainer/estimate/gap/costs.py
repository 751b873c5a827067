"""Estimated seconds of recipes, for the tokens of one step of the user's recipe.

A recipe with another batch or another number of GPUs is counted for the same number of tokens per GPU. Shapes: N
candidates, K sets of constants; the first set is the table's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, one, table
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.estimate import stages_of
from trainer.recipe.schema import Recipe


def tokens_per_gpu(recipe: Recipe) -> float:
    """Returns the tokens of a step divided by its GPUs."""
    return recipe.training.tokens_per_step / recipe.world_size


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of recipes: seconds for as many tokens per GPU as one step of `own` has.

    `constants`: K sets, arrays [K, 1], of the constants that differ from the table.
    """

    own: Recipe
    constants: Constants

    @property
    def tokens_per_gpu(self) -> float:
        return tokens_per_gpu(self.own)

    def at_rate(self, tokens_per_s_per_gpu: float) -> float:
        return self.tokens_per_gpu / tokens_per_s_per_gpu

    def of(self, recipe: Recipe, *, release: str | None) -> Floats:
        """Returns the seconds of one recipe, [K]."""
        return self._of(one(recipe), release)[:, 0]

    def of_subsets(self, changes: Sequence[Mapping[str, Any]], made: Flags, *, release: str | None) -> Floats:
        """Returns the seconds of `own` with subsets of the changes made, [K, R]; made: bool[R, C]."""
        columns = {
            name: [value if row else self.own.knob(name) for row in made[:, at].tolist()]
            for at, change in enumerate(changes)
            for name, value in change.items()
        }
        return self._of(table(self.own, columns), release) if columns else self.of(self.own, release=release)[:, None]

    def _of(self, candidates: Candidates, release: str | None) -> Floats:
        step = np.atleast_2d(stages_of(candidates, release=release, constants=self.constants).step)
        tokens = candidates.number("global_batch_size") * candidates.number("seq_length") / candidates.base.world_size
        seconds: Floats = step * self.tokens_per_gpu / np.broadcast_to(tokens, step.shape[-1:])
        return seconds
