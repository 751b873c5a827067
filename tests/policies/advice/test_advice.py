"""What to try next: the fixes of a wall in order of what they could give back, in Megatron-LM's words."""

from __future__ import annotations

import re

import msgspec
import pytest

from analyzers.diagnosis import Analysis, Cause, Diagnosis, Wall, WallFinding
from policies.advice.advice import advice
from policies.advice.stand_ins import stand_ins
from policies.fixes import FIXES
from policies.situation import Situation
from tests.autotune.report.drawn_study import STEPS, analysis_of
from tests.rows import filled
from trainer.frameworks.megatron_lm.flags import BY_NAME
from trainer.recipe.rules import check

PARTS = {
    Wall.HOST: ("launching", "garbage_collection"),
    Wall.MEMORY: ("recompute", "offload_copies", "allocator"),
    Wall.COMMUNICATION: ("ep_dispatch", "tp", "cp", "pp", "dp"),
    Wall.COMPUTE: (),
}


OF_NO_WALL = ("experts_load", "uneven_stages")


def walled(wall: Wall, *, on_cpu: bool = False, cause: str = "") -> Analysis:
    """A job that loses 100 ms of each of 1000 to every part of one wall, and to a cause that is of none."""
    parts = dict.fromkeys(PARTS[wall], 100000.0)
    finding = WallFinding(
        wall=wall, recoverable_us=1e5 * max(len(parts), 1), share=0.1, evidence=["it is"], parts=parts
    )
    drawn = analysis_of(STEPS[1], burst=2)
    traces = [msgspec.structs.replace(trace, devices=[] if on_cpu else [0]) for trace in drawn.traces]
    lost = Cause(name=cause, headline=cause, lost_us=1e5, share=0.1) if cause else None
    diagnosis = Diagnosis(wall=wall, margin=0.1, because="drawn", walls=[finding], cause=lost)
    return Analysis(diagnosis=diagnosis, traces=traces)


@pytest.mark.parametrize("wall", list(PARTS))
def test_every_fix_of_a_wall_is_offered_for_a_trace_of_unknown_recipe(wall: Wall) -> None:
    claiming = {name for name, fix in FIXES.items() if wall in fix.walls}
    jobs = [walled(wall, on_cpu=on_cpu) for on_cpu in (False, True)] + [walled(wall, cause=name) for name in OF_NO_WALL]
    assert {one.fix for job in jobs for one in advice(job, wall)} == claiming
    for one in advice(walled(wall), wall):
        assert one.flags or one.without
        assert all(word in BY_NAME for word in re.findall(r"--[\w-]+", " ".join((*one.flags, *one.without))))


def test_the_fix_that_gives_most_back_comes_first_and_sizes_stay_open() -> None:
    found = advice(walled(Wall.COMMUNICATION), Wall.COMMUNICATION)
    given = [one.gives_back_us for one in found]
    assert given == sorted(given, key=lambda us: -(us or 0.0))
    assert all(us is not None and us <= 5e5 for us in given)
    words = " ".join(word for one in found for word in one.flags)
    assert "--expert-model-parallel-size N" in words
    assert "--overlap-grad-reduce" in words


def test_a_fix_that_is_on_already_is_not_offered() -> None:
    recipe = stand_ins(on_cpu=False)[0].replace({"overlap_grad_reduce": True, "moe_grouped_gemm": True})
    analysis = walled(Wall.COMMUNICATION)
    found = {one.fix: one for one in advice(analysis, Wall.COMMUNICATION, Situation(recipe=recipe, analysis=analysis))}
    assert "overlap_grad_reduce" not in found
    assert found["micro_batch_up"].flags == ("--micro-batch-size 4",)
    assert found["micro_batch_up"].changes == {"micro_batch_size": 4}


def test_what_does_not_fit_is_offered_memory_by_the_step_time_it_costs() -> None:
    finding = WallFinding(wall=Wall.MEMORY, recoverable_us=0.0, share=1.0, evidence=["out of memory"])
    analysis = Analysis(diagnosis=Diagnosis(wall=Wall.MEMORY, margin=1.0, because="oom", walls=[finding]), traces=[])
    found = advice(analysis, Wall.MEMORY)
    costs = [FIXES[one.fix].slowdown for one in found]
    assert costs == sorted(costs)
    assert {"full_recompute", "distributed_optimizer", "optimizer_offload"} <= {one.fix for one in found}
    assert all(one.gives_back_us is None for one in found)


def test_stand_ins_are_legal_recipes() -> None:
    for on_cpu in (False, True):
        for recipe in filled(stand_ins(on_cpu=on_cpu)):
            assert not [finding for finding in check(recipe) if finding.kind == "error"]
