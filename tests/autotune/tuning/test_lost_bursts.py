"""Bursts that the machine loses, or whose ranks are killed from outside: run again, and never a recipe's fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.tuning.journal import read_study
from policies.trial import Status
from tests.autotune.tuning.fakes import (
    FASTER,
    SLOWER,
    FakeEngine,
    loop_in,
    micro_batches,
    trials_in,
)
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.errors import ToolError

LOST = Outcome(failure=Failure(kind=FailureKind.INFRASTRUCTURE, evidence="no port is free"), ranks=2)


class Faulty(FakeEngine):
    """Engine that loses the bursts whose position in the order of runs is in `lost`."""

    def __init__(self, lost: set[int], by: Outcome = LOST) -> None:
        super().__init__(micro_batches)
        self.lost, self.by = lost, by

    def run(self, burst: Burst) -> Outcome:
        outcome = super().run(burst)
        return self.by if len(self.ran) in self.lost else outcome


def test_a_burst_lost_to_the_machine_is_repeated_under_its_number(tmp_path: Path) -> None:
    engine = Faulty({1})
    loop_in(tmp_path, rule=micro_batches, engine=engine).run()
    history = read_study(tmp_path)
    assert [burst.number for burst in engine.ran] == [1, 1]
    assert [lost.burst for lost in history.lost] == [1]
    assert history.trials[0].status is Status.OK
    assert (tmp_path / "bursts" / "0001.lost").is_dir()


def test_a_machine_that_is_down_stops_the_study_instead_of_blaming_recipes(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"3 bursts in a row .* not the recipe's: no port is free"):
        loop_in(tmp_path, rule=micro_batches, engine=Faulty({1, 2, 3})).run()
    loop_in(tmp_path, rule=micro_batches).run()
    assert trials_in(tmp_path)[0].accepted


def test_a_machine_that_is_down_is_not_a_second_recipes_fault_either(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="3 bursts in a row"):
        loop_in(tmp_path, rule=micro_batches, engine=Faulty({2, 3, 4}), ideas=[SLOWER, FASTER]).run()
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OK, Status.FAILED]
    loop_in(tmp_path, rule=micro_batches, engine=Faulty({2}), ideas=[SLOWER, FASTER]).run()
    assert read_study(tmp_path).lost_in_a_row == 0


KILLED = Outcome(failure=Failure(kind=FailureKind.CRASH, evidence="rank 1 was killed by SIGKILL", killed=True), ranks=2)


def test_a_first_recipe_whose_rank_somebody_kills_is_run_again_and_never_called_infeasible(tmp_path: Path) -> None:
    loop_in(tmp_path / "once", rule=micro_batches, engine=Faulty({1}, KILLED)).run()
    assert trials_in(tmp_path / "once")[0].accepted
    with pytest.raises(ToolError, match="no recipe has run so far: again a rank was killed from outside") as it:
        loop_in(tmp_path / "twice", rule=micro_batches, engine=Faulty({1, 2}, KILLED)).run()
    assert "continue with --resume" in str(it.value)
    assert [lost.burst for lost in read_study(tmp_path / "twice").lost] == [1, 1]
    loop_in(tmp_path / "twice", rule=micro_batches).run()
    assert trials_in(tmp_path / "twice")[0].accepted


def test_a_later_recipe_whose_rank_is_killed_twice_has_failed(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, engine=Faulty({2, 3}, KILLED), ideas=[SLOWER, FASTER]).run()
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OK, Status.FAILED, Status.OK]
    assert len(read_study(tmp_path).lost) == 1


def test_one_recipe_the_machine_cannot_run_is_passed_over(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, engine=Faulty({2, 3}), ideas=[SLOWER, FASTER]).run()
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OK, Status.FAILED, Status.OK]
