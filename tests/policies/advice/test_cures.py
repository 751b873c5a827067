"""Checks the answers to verdicts without a wall: each cause has fixes and words, and the tuner looks where they act."""

from __future__ import annotations

import msgspec
import pytest

from analyzers.cause import LATE
from analyzers.diagnosis import Analysis, Cause, Diagnosis, Wall
from autotune.diagnose.next_steps import next_steps
from policies.advice.cures import CURES, advice_on, walls_of
from policies.fixes import FIXES
from policies.situation import Situation
from policies.tuner.explain import leading_wall
from tests.policies.drawn import STEP_US, analysis, gpu_recipe

PARTS = {Wall.COMMUNICATION: {"ep_dispatch": 9_000.0}, Wall.COMPUTE: {"memory_bound": 5_000.0}}


def lost_to(name: str, *, ranks: tuple[int, ...] = (3,)) -> Analysis:
    cause = Cause(name=name, headline=f"lost to {name}", lost_us=40_000.0, share=0.3, ranks=list(ranks))
    drawn = analysis(PARTS)
    diagnosis = msgspec.structs.replace(drawn.diagnosis, wall=Wall.UNDETERMINED, doubt="no_wall_is_larger", cause=cause)
    return msgspec.structs.replace(drawn, diagnosis=diagnosis)


def test_every_cause_of_lateness_has_its_cure_and_every_cure_its_fixes() -> None:
    assert {str(cause) for cause in LATE} <= set(CURES)
    for cure in CURES.values():
        assert set(cure.fixes) <= set(FIXES)
        assert cure.fixes or cure.wall or cure.advice


def test_a_slow_device_is_named_and_no_fix_is_advised_for_it() -> None:
    cause = lost_to("slow_device").diagnosis.cause
    assert cause is not None
    assert "rank 3" in advice_on(cause)
    assert CURES["slow_device"].fixes == ()


@pytest.mark.parametrize(
    ("name", "knobs", "first"),
    [
        ("bubble", {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 4}, "less_pipeline_parallel"),
        ("uneven_stages", {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 4}, "even_stages"),
        ("experts_load", {}, "less_expert_parallel"),
    ],
)
def test_the_next_steps_are_fixes_that_act_on_the_cause(name: str, knobs: dict[str, object], first: str) -> None:
    found = lost_to(name)
    situation = Situation(recipe=gpu_recipe(knobs), analysis=found)
    steps = next_steps(found, situation)
    fixes = [fix["fix"] for fix in steps.fixes]
    assert first in fixes
    assert set(fixes) <= set(CURES[name].fixes)
    assert all((fix["gives_back_us"] or 0.0) <= 49_000.0 for fix in steps.fixes)
    assert f"lost to {name}" in steps.said
    assert steps.record == ""


def test_a_capacity_is_offered_only_where_numerics_may_change() -> None:
    found = lost_to("experts_load")

    def offered(allow: str) -> set[str]:
        recipe = gpu_recipe(allow=allow)
        return {fix["fix"] for fix in next_steps(found, Situation(recipe=recipe, analysis=found)).fixes}

    assert "even_experts" in offered("numerics-changing")
    assert "even_experts" not in offered("training-equivalent")


def test_the_tuner_looks_for_knobs_where_the_cause_is() -> None:
    assert walls_of(lost_to("bubble").diagnosis) == {Wall.COMMUNICATION}
    assert walls_of(lost_to("slow_device").diagnosis) == set()
    close = Diagnosis(wall=Wall.UNDETERMINED, margin=0.0, because="", between=[Wall.HOST, Wall.COMPUTE])
    assert walls_of(close) == {Wall.HOST, Wall.COMPUTE}
    found = leading_wall(Situation(recipe=gpu_recipe(), analysis=lost_to("bubble")))
    assert found is not None
    assert found == {"cause": "bubble", "headline": "lost to bubble", "lost_us": 40_000.0, "step_us": STEP_US}


def test_load_that_ranks_wait_for_is_evened_out_also_where_a_wall_leads() -> None:
    drawn = analysis(PARTS)
    found = msgspec.structs.replace(
        drawn, diagnosis=msgspec.structs.replace(drawn.diagnosis, waits={"experts_load": 30_000.0})
    )
    fix = FIXES["even_experts"]
    (led, silent) = (Situation(recipe=gpu_recipe(), analysis=each) for each in (found, drawn))
    assert fix.claimed_us(led) == (Wall.COMMUNICATION, 24_000.0)
    assert fix.claimed_us(silent) is None


def test_two_walls_too_close_to_tell_are_both_answered() -> None:
    drawn = analysis({Wall.HOST: {"launching": 20_000.0}, Wall.MEMORY: {"recompute": 20_000.0}})
    between = [Wall.HOST, Wall.MEMORY]
    diagnosis = msgspec.structs.replace(drawn.diagnosis, wall=Wall.UNDETERMINED, doubt="too_close", between=between)
    steps = next_steps(msgspec.structs.replace(drawn, diagnosis=diagnosis))
    assert steps.said.startswith("Fixes for host and memory")
    named = [fix["fix"] for fix in steps.fixes]
    assert {"cuda_graphs", "drop_recompute"} <= {*named}
    assert len(named) == len({*named})
