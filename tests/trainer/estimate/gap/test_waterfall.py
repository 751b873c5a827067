"""The waterfall: gaps that add up, estimates scaled to the reference, causes that gather what belongs together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trainer.estimate.gap.losses import FORCED, losses
from trainer.estimate.gap.parts import EXPERTS_WAIT, Traced
from trainer.estimate.gap.published import Published, published_run
from trainer.estimate.gap.waterfall import (
    Change,
    Gap,
    Interval,
    Kind,
    Level,
    LevelName,
    Measured,
    Question,
    Reference,
    Waterfall,
    waterfall,
)
from trainer.recipe import Recipe, load_recipe

FULL: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CONSTANTS = {"host_layer_us": np.array([[1989.0], [3000.0]]), "link_share.alltoall.network": np.array([[0.9], [0.6]])}


@pytest.fixture(scope="module")
def run() -> Published:
    return published_run("P0313")


def question(run: Published, *, measured: Measured | None = None, own: Recipe | None = None) -> Question:
    mine = own or run.recipe.replace(FULL)
    differs = mine.diff(run.recipe)
    return Question(
        own=mine,
        release=run.release,
        measured=measured,
        reference=Reference(recipe=run.recipe, tokens_per_s_per_gpu=run.tokens_per_s_per_gpu, release=run.release),
        changes=[Change(name="recompute", knobs={name: differs[name] for name in FULL})] if differs else [],
        planned=None,
        constants=CONSTANTS,
        residual=0.04,
    )


def level_s(found: Waterfall, name: LevelName) -> float:
    level = found.level(name)
    assert level is not None
    return level.time.s


def test_gaps_add_up_from_the_measured_step_to_the_published_rate(run: Published) -> None:
    found = waterfall(question(run, measured=Measured(step_s=50.0, deviation=0.01)))
    assert 50.0 - sum(gap.time.s for gap in found.gaps) == pytest.approx(level_s(found, LevelName.REFERENCE))
    names = [gap.kind for gap in found.gaps]
    assert names == [Kind.UNEXPLAINED, Kind.SETTING]


def test_estimates_are_scaled_so_that_the_published_run_is_what_it_measured(run: Published) -> None:
    found = waterfall(question(run, own=run.recipe))
    assert level_s(found, LevelName.OWN) == pytest.approx(level_s(found, LevelName.REFERENCE))
    assert not found.gaps
    assert found.scale != 1.0


def test_a_release_that_differs_is_a_gap_of_its_own(run: Published) -> None:
    found = waterfall(replace(question(run, own=run.recipe), release="25.09"))
    (gap,) = found.gaps
    assert gap.kind is Kind.SOFTWARE
    assert gap.time.s > 0


def test_more_gpus_are_a_gap_of_their_own(run: Published) -> None:
    cluster = run.recipe.cluster.model_copy(update={"nodes": 2 * run.recipe.cluster.nodes})
    found = waterfall(question(run, own=run.recipe.model_copy(update={"cluster": cluster})))
    assert {gap.kind for gap in found.gaps} == {Kind.CLUSTER}


def test_traced_parts_take_the_place_of_what_is_not_explained(run: Published) -> None:
    expected = {"ep_exposed": np.array([8.0, 9.0]), "gemm": np.array([20.0, 20.0])}
    seen = {"ep_exposed": 20.0, "gemm": 21.0, EXPERTS_WAIT: 2.0, "other": 7.0}
    traced = Traced(seen=seen, expected=expected, deviations={}, usual_deviation=0.1, rank=0)
    found = waterfall(question(run, measured=Measured(step_s=50.0, deviation=0.01, traced=traced)))
    by_name = {gap.name: gap for gap in found.gaps}
    assert by_name["ep"].time.s == pytest.approx(20.0 - found.scale * 8.0)
    assert by_name["router"].time.s == 2.0
    assert 50.0 - sum(gap.time.s for gap in found.gaps) == pytest.approx(level_s(found, LevelName.REFERENCE))
    assert losses(found)[0].name == "ep"


def test_what_a_traced_reference_takes_beyond_its_estimate_is_expected_here_too(run: Published) -> None:
    traced = Traced(
        seen={"host": 10.0},
        expected={"host": np.array([1.0, 1.5])},
        deviations={},
        usual_deviation=0.1,
        rank=0,
        reference_excess_s={"host": 8.0},
    )
    found = waterfall(question(run, measured=Measured(step_s=50.0, deviation=0.0, traced=traced)))
    host = next(gap for gap in found.gaps if gap.name == "host")
    assert host.time.s == pytest.approx(10.0 - 8.0 - found.scale)


def test_intervals_are_narrower_where_the_step_was_measured(run: Published) -> None:
    def width(asked: Question) -> float:
        return next(gap.time.deviation_s for gap in waterfall(asked).gaps if gap.kind is Kind.SETTING)

    vague = replace(question(run), residual=1.0)
    assert 0 < width(question(run)) < width(vague)


def test_on_a_cpu_estimates_are_scaled_to_the_measured_step() -> None:
    own = load_recipe("cpu-moe-slow")
    change = Change(name="recompute", knobs={"recompute_granularity": ("full", None)})
    asked = Question(
        own=own,
        release=None,
        measured=Measured(step_s=3.0, deviation=0.1),
        reference=None,
        changes=[change],
        planned=own.replace(change.target),
        constants={"cpu_tflops": np.array([[0.09], [0.1]])},
        residual=0.15,
        scaled_to_own=True,
    )
    found = waterfall(asked)
    (gap,) = found.gaps
    assert 0 < gap.time.s < 3.0
    assert 3.0 - gap.time.s == pytest.approx(level_s(found, LevelName.PLAN))


def drawn(*gaps: Gap) -> Waterfall:
    return Waterfall(levels=(Level(name=LevelName.MEASURED, time=Interval(s=10.0)),), gaps=gaps, scale=1.0)


def test_routing_is_one_cause_whether_forced_there_or_waited_for_here() -> None:
    forced = Gap(kind=Kind.SETTING, name=FORCED, time=Interval(s=1.0), knobs={FORCED: (False, True)})
    waited = Gap(kind=Kind.PART, name="router", time=Interval(s=0.5), seen_s=0.5, expected_s=0.0)
    (loss,) = losses(drawn(waited, forced))
    assert (loss.name, loss.time.s) == ("router", 1.5)


def of_dispatcher(s: float) -> Gap:
    return Gap(kind=Kind.SETTING, name="dispatcher", time=Interval(s=s), knobs={"moe_permute_fusion": (False, True)})


def test_an_excess_of_a_part_counts_to_the_setting_that_moves_it_up_to_what_it_moves() -> None:
    part = Gap(kind=Kind.PART, name="memory_bound", time=Interval(s=4.0), seen_s=9.0, moved_by={"dispatcher": 1.5})
    first, second = losses(drawn(part, of_dispatcher(1.0)))
    assert (first.name, first.time.s) == ("dispatcher", 2.5)
    assert (second.name, second.time.s) == ("memory_bound", 2.5)


def test_no_setting_gives_back_time_that_the_trace_does_not_show() -> None:
    part = Gap(
        kind=Kind.PART,
        name="host",
        time=Interval(s=-6.0),
        seen_s=2.0,
        expected_s=8.0,
        moved_by={"dispatcher": 4.0, "pipeline": 2.0},
    )
    pipeline = Gap(kind=Kind.SETTING, name="pipeline", time=Interval(s=2.0), knobs={"overlap_p2p_comm": (False, True)})
    first, second = losses(drawn(part, of_dispatcher(5.0), pipeline))
    assert (first.name, first.time.s) == ("dispatcher", 2.0)  # 4 of the 8 s expected, a quarter of which is there
    assert (second.name, second.time.s) == ("pipeline", 0.5)


def test_a_gain_is_no_loss() -> None:
    assert not losses(drawn(Gap(kind=Kind.PART, name="host", time=Interval(s=-2.0))))


def test_measured_parts_of_a_trace_whose_recipe_is_not_known_are_exact() -> None:
    part = Gap(kind=Kind.PART, name="host", time=Interval(s=4.0), seen_s=4.0)
    (measured,) = losses(drawn(part))
    known = drawn(part)
    (estimated,) = losses(replace(known, levels=(*known.levels, Level(name=LevelName.OWN, time=Interval(s=6.0)))))
    assert measured.time.deviation_s == 0.0
    assert estimated.time.deviation_s > 0.0
