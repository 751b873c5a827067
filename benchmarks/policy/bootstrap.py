"""Compares two policies by paired differences of tuned/best, with a bootstrap over scenarios.

Scenarios are resampled, each with all its studies: effects that several seeds of one cluster share count once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.policy.figures import LOW, bursts_shown
from benchmarks.policy.study import Study

DRAWS = 10_000
ENDS = (0.05, 0.95)  # quantiles at the ends of the interval: below the upper one a policy is lower with 95 % confidence
STATISTICS = {"median": 0.5, "10th percentile": LOW}


def differences(now: Sequence[Study], before: Sequence[Study], best: Mapping[str, float], budget: int) -> Iterator[str]:
    """Yields a line for each statistic after each number of bursts: new minus old, over the studies that both policies
    have."""
    new, old = _by_scenario(now), _by_scenario(before)
    shared = {name: sorted(new[name].keys() & old[name].keys()) for name in new if name in old}
    shared = {name: seeds for name, seeds in shared.items() if seeds}
    if not shared:
        return
    seeds = min(len(found) for found in shared.values())
    yield f"policy minus policy kept: {len(shared)} scenarios, {seeds} seeds, paired bootstrap over scenarios, 90 %"
    rows = np.random.default_rng(0).integers(len(shared), size=(DRAWS, len(shared)))
    for bursts in bursts_shown(budget):
        sides = [
            np.array(
                [
                    [side[name][seed].tuned_after(bursts) / best[name] for seed in found[:seeds]]
                    for name, found in shared.items()
                ]
            )
            for side in (new, old)
        ]
        for words, share in STATISTICS.items():
            after, was = (float(np.quantile(side, share)) for side in sides)
            drawn = [np.quantile(side[rows].reshape(DRAWS, -1), share, axis=1) for side in sides]
            low, high = np.quantile(drawn[0] - drawn[1], ENDS)
            verdict = "LOWER" if high < 0 else "higher" if low > 0 else "no difference"
            yield (
                f"  after {bursts:2}: {words:15} {was:.4f} -> {after:.4f} ({after - was:+.4f}, "
                f"{low:+.4f} to {high:+.4f}): {verdict}"
            )


def _by_scenario(studies: Sequence[Study]) -> dict[str, dict[int, Study]]:
    """Returns {scenario: {seed: study}}."""
    found: dict[str, dict[int, Study]] = {}
    for study in studies:
        found.setdefault(study.scenario, {})[study.seed] = study
    return found
