"""Baseline search for the policy: `plan`'s first choices in order."""

from __future__ import annotations

import time
from itertools import islice

from benchmarks.policy.ground import Ground
from benchmarks.policy.study import Study


def plan_in_order(ground: Ground, budget: int) -> Study:
    """Runs `plan`'s first choices, in order and without skipping any."""
    started = time.process_time()
    with ground.untraced("plan") as field:
        for recipe in islice(ground.planned(), budget):
            field.run(recipe)
        return field.study(ended="budget", cpu_s=time.process_time() - started)
