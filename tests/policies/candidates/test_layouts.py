"""Candidates of `plan`'s legal space: what every row carries along from the incumbent, and what is worth no burst."""

from __future__ import annotations

from functools import cache
from itertools import islice

import msgspec
import pytest

from analyzers.diagnosis import Analysis, IdleByCause, Wall
from policies.candidates.candidate import best_first
from policies.candidates.free import LEFT_ON, gives_up
from policies.candidates.layouts import (
    MEMORY_ROOM,
    RARE_GARBAGE_COLLECTION,
    SHORT_LIST,
    layouts,
    legal_space,
    with_incumbent_values,
)
from policies.search.avoid import Avoid
from policies.surrogate.surrogate import Surrogate, fit_surrogate
from policies.trial import PHASES
from policies.tuner.tuner import Tuner
from tests.policies.drawn import STEP_US, analysis, cpu_recipe, failed, gpu_recipe, outcome, trial
from tests.rows import filled
from trainer.burst import FailureKind
from trainer.estimate.candidates import tabulate
from trainer.estimate.plan.search import Search, search
from trainer.recipe import Recipe
from trainer.recipe.rules import check

EACH_STEP = {"manual_gc": True, "manual_gc_interval": 1}


@cache
def before_any_burst(limit_gib: float | None = 2.0) -> Surrogate:
    return fit_surrogate([], limit_gib=limit_gib)


@cache
def space(*, cpu: bool = False) -> Search:
    return legal_space(cpu_recipe() if cpu else gpu_recipe())


def carried_by(incumbent: Recipe) -> Recipe:
    cpu = incumbent.hardware.is_cpu
    given = cpu_recipe() if cpu else gpu_recipe()
    return with_incumbent_values(space(cpu=cpu), given, incumbent, before_any_burst()).finals.candidates.base


def test_knobs_that_a_plan_does_not_vary_stand_as_in_the_incumbent() -> None:
    found = carried_by(cpu_recipe({"threads_per_rank": 2, "cpu_affinity": "spread", "micro_batch_size": 4}))
    assert found.knob("threads_per_rank") == 2
    assert found.knob("cpu_affinity") == "spread"
    assert found.knob("micro_batch_size") == 1  # a knob that the rows of the space vary
    assert not found.knob("manual_gc")


def test_garbage_is_collected_rarely_where_it_is_collected_at_every_step() -> None:
    found = carried_by(cpu_recipe(EACH_STEP))
    assert {knob: found.knob(knob) for knob in RARE_GARBAGE_COLLECTION} == RARE_GARBAGE_COLLECTION
    frozen = cpu_recipe(EACH_STEP, freeze=("manual_gc_interval",))
    assert carried_by(frozen).knob("manual_gc_interval") == 1


def test_what_is_free_on_gpus_is_not_carried() -> None:
    given = gpu_recipe()
    assert with_incumbent_values(space(), given, given.replace(EACH_STEP), before_any_burst()) is space()


def test_what_evens_out_the_experts_load_is_carried_on_gpus_too() -> None:
    found = carried_by(gpu_recipe({"moe_expert_capacity_factor": 1.25, **EACH_STEP}))
    assert found.knob("moe_expert_capacity_factor") == 1.25
    assert found.knob("manual_gc_interval") == gpu_recipe().knob("manual_gc_interval")


def test_what_single_settings_have_won_goes_along_to_layouts_that_do_not_refuse_it() -> None:
    given = gpu_recipe()
    won = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "tp_comm_overlap": True,
        "attention_backend": "fused",
    }
    group = layouts(space(), given, given.replace(won), before_any_burst(None), Avoid([]), min_fit=0.5)
    found = [each.recipe for each in islice(best_first([group], Avoid([]), runs=True), 40)]
    assert len(found) == 40
    assert all(each.knob("attention_backend") == "fused" for each in found)
    assert all(each.knob("tp_comm_overlap") == (each.knob("tensor_model_parallel_size") > 1) for each in found)


def test_rows_are_legal_each_once_and_switch_on_what_is_free_on_gpus() -> None:
    avoid = Avoid([trial(gpu_recipe())])
    group = layouts(space(), gpu_recipe(), None, before_any_burst(79.0), avoid, min_fit=0.5)
    assert group.table.count <= SHORT_LIST
    found = [each.recipe for each in islice(best_first([group], avoid, runs=False), 40)]
    assert len({recipe.digest() for recipe in found}) == len(found) == 40
    assert gpu_recipe().digest() not in {recipe.digest() for recipe in found}
    assert [finding for recipe in found for finding in check(recipe) if finding.kind == "error"] == []
    assert all(recipe.knob("manual_gc") and recipe.knob("cpu_affinity") == "spread" for recipe in found)


def test_rows_whose_gain_from_offload_is_unsure_are_left_out() -> None:
    data = {"name": "32xh100", "model": "mixtral-8x22b", "cluster": {"gpu": "h100", "nodes": 4}}
    given = Recipe.model_validate(data | {"training": {"seq_length": 4096, "global_batch_size": 256}})
    found = search(given, room=MEMORY_ROOM).finals
    assert found.unsure.any()
    assert legal_space(given).finals.candidates.count == found.candidates.count - found.unsure.sum()
    assert not legal_space(given).finals.unsure.any()


def test_rows_are_predicted_with_what_is_free() -> None:
    surrogate, avoid = before_any_burst(79.0), Avoid([trial(gpu_recipe())])
    group = layouts(space(), gpu_recipe(), None, surrogate, avoid, min_fit=0.5)
    found = list(islice(best_first([group], avoid, runs=False), 10))
    assert {each.recipe.knob("overlap_moe_expert_parallel_comm") for each in found} == {False, True}
    as_written, _ = surrogate.time.predict(tabulate([each.recipe for each in found]))
    assert [each.log_step for each in found] == pytest.approx(as_written.tolist())


def test_what_is_free_is_left_off_where_it_is_suspected_of_a_failure() -> None:
    base = trial(gpu_recipe())
    crash = failed(gpu_recipe({"cpu_affinity": "spread"}), "taskset: no such file", kind=FailureKind.CRASH)
    avoid = Avoid([base, crash])
    group = layouts(space(), gpu_recipe(), None, before_any_burst(79.0), avoid, min_fit=0.5)
    found = [each.recipe for each in islice(best_first([group], avoid, runs=False), 10)]
    assert all(recipe.knob("cpu_affinity") != "spread" and recipe.knob("manual_gc") for recipe in filled(found))


def test_buffers_are_registered_once_a_burst_has_run() -> None:
    avoid = Avoid([trial(gpu_recipe())])
    for incumbent, is_on in ((None, False), (gpu_recipe(), True)):
        group = layouts(space(), gpu_recipe(), incumbent, before_any_burst(79.0), avoid, min_fit=0.5)
        found = [each.recipe for each in islice(best_first([group], avoid, runs=is_on), 10)]
        assert any(recipe.knob("nccl_ub") for recipe in filled(found)) is is_on


def test_no_burst_is_paid_to_give_up_what_costs_nothing() -> None:
    free = {"manual_gc": True, "manual_gc_interval": 100, "moe_router_fusion": True, "cpu_affinity": "spread"}
    best = gpu_recipe(free)
    assert gives_up(best, best.replace({"manual_gc": False}))
    assert gives_up(best, best.replace({"moe_router_fusion": False, "cpu_affinity": "none"}))
    assert not gives_up(best, best.replace({"manual_gc": False, "micro_batch_size": 2}))
    assert not gives_up(best, best.replace({"manual_gc_interval": 300}))
    assert LEFT_ON["overlap_grad_reduce"] is True


def collecting(share: float) -> Analysis:
    """Returns a step in which garbage is collected for such a share, the rest computed."""
    seen = analysis({Wall.HOST: {"garbage_collection": share * STEP_US}})
    step = msgspec.structs.replace(
        seen.traces[0].steps[0],
        compute_us=(1 - share) * STEP_US,
        compute_by_class={"gemm": 0.8 * (1 - share) * STEP_US},
        idle_us=share * STEP_US,
        idle_by_cause=IdleByCause(host_us=share * STEP_US),
        host_by_activity={"garbage_collection": share * STEP_US},
    )
    return msgspec.structs.replace(seen, traces=[msgspec.structs.replace(seen.traces[0], span=step, steps=[step])])


def test_garbage_collection_that_is_the_largest_part_is_answered_by_the_first_proposal() -> None:
    base = cpu_recipe(EACH_STEP)
    given = msgspec.structs.replace(outcome(base), cpu_us=[1.9 * STEP_US] * 3, cores_per_rank=1.0)
    best = trial(base, given=given, seen=collecting(0.7))
    tuner = Tuner(base, 1)
    found = next(proposal for phase in PHASES if (proposal := tuner.propose(best, phase, [best])))
    assert found.recipe.knob("manual_gc_interval") >= 10
    assert found.reason is not None
    was, now = found.reason.figures["parts"]["gc_s"]
    assert now < was
    assert "manual_gc" in {knob.removesuffix("_interval") for share in found.fixes for knob in share.knobs}
