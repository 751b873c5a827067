"""The warm-up, measured and traced iterations of a burst, counted from 1."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers of warm-up, measured and traced iterations.

    Megatron's profiler warms up for one step before `profile_start`, records up to the step before `profile_end` and
    writes the trace at the start of that step; none of these is measured. Source: training.py, train().
    """

    warmup: int
    measured: int
    traced: int

    @property
    def measures(self) -> range:
        return range(self.warmup + 1, self.warmup + self.measured + 1)

    @property
    def profile_start(self) -> int:
        return self.measures.stop + 1

    @property
    def profile_end(self) -> int:
        return self.profile_start + self.traced

    @property
    def last(self) -> int:
        """Returns the iteration after which the trainer ends."""
        return self.profile_end if self.traced else self.measures.stop - 1


def bounds_of(recipe: Recipe) -> Bounds:
    traced = recipe.burst.trace_steps if recipe.trainer is None or recipe.trainer.trace != "none" else 0
    return Bounds(warmup=recipe.burst.warmup_steps, measured=recipe.burst.measure_steps, traced=traced)
