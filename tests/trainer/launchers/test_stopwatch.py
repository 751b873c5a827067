"""What counts for a deadline, by an invented clock."""

from __future__ import annotations

from trainer.launchers.stopwatch import STOPPED_S, Stopwatch


def test_time_counts_unless_the_ranks_are_held_or_nobody_looked() -> None:
    now = [100.0]
    watch = Stopwatch(clock=lambda: now[0])

    def after(seconds: float, *, held: bool = False) -> float:
        now[0] += seconds
        return watch.look(held=held)

    assert after(2.0) == 2.0
    assert after(30.0, held=True) == 2.0  # a queue, or a suspension that Slurm tells
    assert after(1.0) == 3.0
    assert after(STOPPED_S + 1.0) == 3.0  # this process was stopped
    assert after(STOPPED_S) == 3.0 + STOPPED_S
