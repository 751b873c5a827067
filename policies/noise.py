"""How much two measurements of one recipe differ, and what a trial's figure is.

A gain below the band is no gain, so no fix is proposed whose bound lies inside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from policies.trial import Trial

# Repeats of one recipe on a quiet cluster still differ by about this much (Megatron-Bridge commit d2d9ad928:
# 2.2 % between allocations, 0.3 % standard deviation on pinned nodes).
FLOOR = 0.015
WITHOUT_REPEATS = 0.03
# Bursts of one recipe on nodes that stay the same still differ by a standard deviation of 0.3 % (Megatron-Bridge commit
# d2d9ad928, which measured repeats on pinned nodes); less is not assumed of any machine.
PINNED = 0.005


def throughput(trial: Trial) -> float | None:
    """Tokens/s/GPU: the median over the trial's bursts that gave figures; None without one."""
    figures = [o.tokens_per_s_per_gpu for o in trial.outcomes if o.ok and o.tokens_per_s_per_gpu]
    return median(figures) if figures else None


def cpu_throughput(trial: Trial) -> float | None:
    """Tokens for a microsecond of the ranks' CPU time, the median over bursts: steadier on a busy machine. None
    where CPU time was not measured."""
    figures = [o.tokens_per_step / median(o.cpu_us) for o in trial.outcomes if o.ok and any(o.cpu_us)]
    return median(figures) if figures else None


def noise_band(trials: Sequence[Trial]) -> float:
    """Relative half-spread of repeated bursts, the median over trials with repeats."""
    spreads = []
    for trial in trials:
        figures = [o.tokens_per_s_per_gpu for o in trial.outcomes if o.ok and o.tokens_per_s_per_gpu]
        if len(figures) >= 2:
            spreads.append((max(figures) - min(figures)) / 2 / median(figures))
    return max(FLOOR, median(spreads)) if spreads else WITHOUT_REPEATS


def median_error(steps: list[float]) -> float:
    """Relative standard error of the median of steps that were independent (1.2533 σ/√n, σ from the median
    absolute deviation)."""
    if len(steps) < 3:
        return 0.0
    middle = median(steps)
    spread = 1.4826 * median(abs(step - middle) for step in steps)
    return 1.2533 * spread / middle / math.sqrt(len(steps)) if middle > 0 else 0.0
