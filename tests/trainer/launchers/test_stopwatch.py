"""Checks which time counts for a deadline, with a fake clock."""

from __future__ import annotations

from trainer.engines.command.follow import Patience
from trainer.launchers.stopwatch import STOPPED_S, Stopwatch


class Looks:
    def __init__(self) -> None:
        self.at = 100.0
        self.watch = Stopwatch(clock=lambda: self.at)

    def __call__(self, seconds: float, *, held: bool = False) -> float:
        """Returns the time that counts after `seconds` more."""
        self.at += seconds
        return self.watch.look(held=held)


def test_time_counts_unless_the_ranks_are_held() -> None:
    after = Looks()
    assert after(2.0) == 2.0
    assert after(30.0, held=True) == 2.0  # a queue, or a suspension that Slurm tells
    assert after(1.0) == 3.0
    assert after(STOPPED_S) == 3.0 + STOPPED_S
    assert after(3600.0, held=True) == 3.0 + STOPPED_S


def test_a_long_stop_of_this_process_counts_at_most_half_the_shortest_patience() -> None:
    after = Looks()
    assert after(2.0) == 2.0
    assert after(8 * 3600.0) - 2.0 <= Patience.least_s / 2


def test_a_deadline_passes_also_where_every_look_takes_longer_than_a_stop() -> None:
    after = Looks()
    looks = [after(STOPPED_S + 1.0) for _ in range(100)]
    assert looks == sorted(set(looks))
    assert looks[-1] >= 900.0
