"""Which policy tunes a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from policies.belief.lesson import Lesson
from policies.learned import LearnedPolicy
from policies.policy import Policy
from trainer.recipe import Recipe


def policy_for(base: Recipe, seed: int, lessons: Sequence[Lesson] = ()) -> Policy | LearnedPolicy:
    """The one that learns its cluster, from `lessons` of other studies too; on CPUs, whose constants no table has, the
    fixes of the walls."""
    return Policy(base, seed) if base.hardware.is_cpu else LearnedPolicy(base, seed, lessons)
