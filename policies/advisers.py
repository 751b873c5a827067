"""Which policy tunes a recipe."""

from __future__ import annotations

from policies.learned import LearnedPolicy
from policies.policy import Policy
from trainer.recipe import Recipe


def policy_for(base: Recipe, seed: int) -> Policy | LearnedPolicy:
    """The one that learns its cluster; on CPUs, whose constants no table has, the fixes of the walls."""
    return Policy(base, seed) if base.hardware.is_cpu else LearnedPolicy(base, seed)
