"""The interval of a speed-up holds the true one as often as it says."""

from __future__ import annotations

from benchmarks.speedup_coverage import BURSTS, DEVIATIONS, MACHINES, coverage


def test_the_interval_holds_the_truth_in_93_to_97_per_cent_of_600_drawn_studies() -> None:
    found = dict(coverage(25))
    assert len(found) == len(MACHINES) * len(DEVIATIONS) * len(BURSTS)
    assert 0.93 <= sum(found.values()) / len(found) <= 0.97
