from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import policies
from policies.search import Measured, Point, suggest

AXES = {"a": ("0", "1", "2", "3"), "b": ("0", "1", "2", "3"), "c": ("off", "on")}


def value(point: Point) -> float:
    """One optimum, at a=3 b=2 c=on; c=on with a=0 does not fit."""
    return 10.0 - (3 - int(point["a"])) ** 2 - (2 - int(point["b"])) ** 2 + (3.0 if point["c"] == "on" else 0.0)


def excess(point: Point) -> float:
    return 0.2 if point["c"] == "on" and point["a"] == "0" else -0.2


def run(seed: int, budget: int, hints: list[Point] | None = None) -> list[Point]:
    seen: list[Point] = []
    measured: list[Measured] = []
    for _ in range(budget):
        point = suggest(
            AXES, measured, hints or [], seed=seed + len(seen), refuse=lambda p: "tried" if p in seen else None
        )
        if point is None:
            break
        seen.append(point)
        fits = excess(point) <= 0
        measured.append(Measured(point=point, tokens_per_s=value(point) if fits else 0.0, excess=excess(point)))
    return seen


@pytest.mark.parametrize("seed", range(3))
def test_no_point_comes_twice(seed: int) -> None:
    points = run(seed, 20)
    assert len({tuple(point.items()) for point in points}) == len(points) == 20


def test_the_same_arguments_give_the_same_points() -> None:
    assert run(7, 12) == run(7, 12)


def test_hints_come_first_and_in_order() -> None:
    hints: list[Point] = [{"a": "2", "b": "2", "c": "on"}, {"a": "3", "b": "3", "c": "off"}]
    assert run(1, 2, hints) == hints


def test_a_refused_hint_is_passed_over() -> None:
    hints: list[Point] = [{"a": "2", "b": "2", "c": "on"}, {"a": "3", "b": "3", "c": "off"}]
    point = suggest(AXES, [], hints, seed=1, refuse=lambda p: "no" if p == hints[0] else None)
    assert point == hints[1]


def test_an_exhausted_space_says_so() -> None:
    assert suggest(AXES, [], [], seed=1, refuse=lambda point: "all refused") is None


@pytest.mark.parametrize("seed", range(5))
def test_the_sampler_finds_a_near_optimum_in_a_space_of_32(seed: int) -> None:
    best = max(value(point) for point in run(seed, 16) if excess(point) <= 0)
    assert best >= 12.0


def test_asking_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    run(1, 4)
    assert capfd.readouterr() == ("", "")


def test_the_policy_imports_without_optuna() -> None:
    code = "import sys, policies.policy; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_other_file_knows_the_sampler() -> None:
    folder = Path(policies.__file__).parent
    knowing = [
        path.name for path in folder.rglob("*.py") if re.search(r"^\s*(import|from) optuna", path.read_text(), re.M)
    ]
    assert knowing == ["search.py"]


RANKED: list[Point] = [
    {"a": "3", "b": "2", "c": "on"},
    {"a": "1", "b": "2", "c": "on"},
    {"a": "0", "b": "0", "c": "off"},
]


def test_the_model_s_points_come_in_their_order_and_then_nothing() -> None:
    seen: list[Point] = []
    while point := suggest(
        AXES, [], [], seed=1, sampler="surrogate", ranked=RANKED, refuse=lambda p: "tried" if p in seen else None
    ):
        seen.append(point)
    assert seen == RANKED


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_every_sampler_gives_the_same_point_for_the_same_trials(sampler: str) -> None:
    measured = [Measured(point=point, tokens_per_s=value(point), excess=excess(point)) for point in RANKED]
    points = [suggest(AXES, measured, [], seed=3, sampler=sampler, refuse=lambda p: None) for _ in range(2)]
    assert points[0] == points[1] is not None
