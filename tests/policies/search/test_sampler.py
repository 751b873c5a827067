"""Optuna's study: it has every trial, is asked in one space, is seeded; the only file that imports Optuna."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import optuna
import pytest

import policies
from policies.search.sampler import SURROGATE, UNKNOWN_EXCESS, ask, excess
from policies.search.space import Point, Size, Space, space_of
from policies.trial import Trial
from tests.policies.drawn import cpu_recipe, failed, out_of_memory, outcome, trial
from tests.rows import filled
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

SAMPLERS = ("tpe", "gp", "random")
BASE = cpu_recipe()
SIZES = (1, 2, 4, 8)
RECIPES = [cpu_recipe({"micro_batch_size": size, "threads_per_rank": threads}) for size in SIZES for threads in (1, 2)]
SPACE: Space = space_of(BASE, tabulate(RECIPES))
TRIALS = (
    trial(BASE, given=outcome(BASE, tokens_per_s=1000.0)),
    trial(RECIPES[2], number=1, given=outcome(RECIPES[2], tokens_per_s=1500.0)),
    trial(RECIPES[4], number=2, given=out_of_memory(RECIPES[4])),
    failed(RECIPES[6], "ImportError: no package", number=3),
)


@dataclass(frozen=True)
class Option:
    recipe: Recipe


OPTIONS = [Option(recipe) for recipe in RECIPES]


@dataclass
class Spy:
    """Trials that Optuna had, and the axes it was asked for."""

    trials: list[list[optuna.trial.FrozenTrial]]
    axes: list[dict[str, optuna.distributions.BaseDistribution]]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    found, ask_optuna = Spy(trials=[], axes=[]), optuna.Study.ask

    def asked(
        study: optuna.Study, distributions: dict[str, optuna.distributions.BaseDistribution] | None = None
    ) -> optuna.trial.Trial:
        found.trials.append(study.get_trials())
        found.axes.append(dict(distributions or {}))
        return ask_optuna(study, distributions)

    monkeypatch.setattr(optuna.Study, "ask", asked)
    return found


def nearest(point: Point) -> Iterator[Option]:
    distance = SPACE.distance(tabulate(RECIPES), point)
    return iter(sorted(OPTIONS, key=lambda option: distance[OPTIONS.index(option)]))


def asked(sampler: str, trials: Sequence[Trial] = TRIALS, *, seed: int = 1) -> Option | None:
    return ask(SPACE, trials, OPTIONS, nearest, pick=lambda found: found[3], sampler=sampler, seed=seed)


def test_the_default_sampler_gives_what_the_acquisition_picks() -> None:
    assert asked(SURROGATE) is OPTIONS[3]
    assert ask(SPACE, TRIALS, [], nearest, pick=lambda found: found[0], sampler=SURROGATE, seed=1) is None


@pytest.mark.parametrize("sampler", [SURROGATE, *SAMPLERS])
def test_every_sampler_is_asked_in_one_space_by_a_study_with_every_trial(sampler: str, spy: Spy) -> None:
    asked(sampler)
    asked(sampler, TRIALS[:2])
    assert spy.axes[0] == spy.axes[1]
    assert set(spy.axes[0]) == set(SPACE.axes)
    assert [len(each) for each in spy.trials] == [3, 2]  # a trial that failed otherwise says nothing
    assert [dict(each.params) for each in spy.trials[0]] == [dict(SPACE.point(each.recipe)) for each in TRIALS[:3]]


def test_a_trial_that_ran_out_of_memory_is_complete_and_infeasible(spy: Spy) -> None:
    asked("tpe")
    ran, _, died = spy.trials[0]
    assert [each.state for each in spy.trials[0]] == [optuna.trial.TrialState.COMPLETE] * 3
    assert constraint(died) == UNKNOWN_EXCESS > 0 > constraint(ran)
    assert died.value == min(each.value or 0.0 for each in spy.trials[0])  # as slow as the slowest so far


def constraint(trial: optuna.trial.FrozenTrial) -> float:
    (value,) = trial.constraints.values()
    return float(value)


def test_excess_is_peak_over_limit() -> None:
    half, above = outcome(BASE, peak_gib=1.0), outcome(BASE, peak_gib=2.2)
    assert excess(trial(BASE, given=half)) == pytest.approx(-0.5)
    assert excess(trial(BASE, given=above)) == pytest.approx(0.1)
    assert excess(trial(BASE, given=msgspec.structs.replace(half, limit_gib=None))) == -UNKNOWN_EXCESS
    assert excess(trial(BASE, given=out_of_memory(BASE))) == UNKNOWN_EXCESS


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_and_trials_give_the_same_and_seeds_differ(sampler: str) -> None:
    assert asked(sampler) is asked(sampler) is not None
    assert len({option.recipe.digest() for seed in range(8) if (option := asked(sampler, seed=seed))}) > 1


def test_a_sampled_point_is_taken_to_the_nearest_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[Point] = []

    def watched(point: Point) -> Iterator[Option]:
        points.append(point)
        return nearest(point)

    found = ask(SPACE, TRIALS, [], watched, pick=lambda found: found[0], sampler="random", seed=5)
    assert found is not None
    (point,) = points
    assert set(point) == set(SPACE.axes)
    assert SPACE.distance(tabulate([found.recipe]), point)[0] == SPACE.distance(tabulate(RECIPES), point).min()
    assert ask(SPACE, TRIALS, [], lambda point: iter([]), pick=lambda found: found[0], sampler="tpe", seed=5) is None


def test_sizes_are_sampled_by_doublings(spy: Spy) -> None:
    asked("random")
    sizes = {axis: domain for axis, domain in SPACE.axes.items() if isinstance(domain, Size)}
    for axis, domain in filled(sizes.items()):
        found = spy.axes[0][axis]
        assert isinstance(found, optuna.distributions.IntDistribution)
        assert found.log
        assert (found.low, found.high) == (1, domain.high)


def test_asking_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    asked("tpe")
    assert capfd.readouterr() == ("", "")


def test_the_tuner_imports_without_optuna() -> None:
    code = "import sys, policies.tuner.tuner; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_other_file_imports_optuna() -> None:
    folder = Path(policies.__file__).parent
    importing = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"^\s*(import|from) optuna", path.read_text(encoding="utf-8"), re.M)
    ]
    assert importing == ["search/sampler.py"]
