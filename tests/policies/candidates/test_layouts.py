"""What every row of the space takes along, and what is not worth a burst of its own there."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest
from policies.carried import RARELY, carrying
from policies.learned import WORTH, LearnedPolicy
from policies.prospects import Prospect, lost, prospects

from analyzers.diagnosis import Analysis, IdleByCause, Wall
from policies.surrogate.surrogate import Surrogate
from policies.trial import Trial
from policies.tuner.phases import PHASES
from tests.policies.drawn import STEP_US, analysis, cpu_recipe, gpu_recipe, outcome, trial
from trainer.estimate.plan.search import Search, search
from trainer.recipe import Recipe

EACH_STEP = {"manual_gc": True, "manual_gc_interval": 1}


def nothing_ran() -> Surrogate:
    return fit_surrogate([], limit_gib=2.0)


@pytest.fixture(scope="module")
def space() -> Search:
    return search(cpu_recipe())


def base_of(space: Search, best: Recipe) -> Recipe:
    return carrying(space, cpu_recipe(), best, nothing_ran(), least=WORTH).finals.candidates.base


def test_what_a_plan_does_not_vary_stands_as_in_the_best(space: Search) -> None:
    best = cpu_recipe({"threads_per_rank": 2, "cpu_affinity": "spread", "micro_batch_size": 4})
    found = base_of(space, best)
    assert found.knob("threads_per_rank") == 2
    assert found.knob("cpu_affinity") == "spread"
    assert found.knob("micro_batch_size") == 1  # which the rows vary
    assert not found.knob("manual_gc")


def test_garbage_is_collected_rarely_where_it_is_collected_at_every_step(space: Search) -> None:
    found = base_of(space, cpu_recipe(EACH_STEP))
    assert {knob: found.knob(knob) for knob in RARELY} == RARELY
    frozen = cpu_recipe(EACH_STEP, freeze=("manual_gc_interval",))
    assert base_of(space, frozen).knob("manual_gc_interval") == 1


def test_what_is_free_on_gpus_is_not_carried() -> None:
    given = gpu_recipe()
    found = search(given)
    assert carrying(found, given, given.replace(EACH_STEP), nothing_ran(), least=WORTH) is found


def test_what_single_settings_have_won_goes_along_to_layouts_that_do_not_refuse_it() -> None:
    given = gpu_recipe()
    won = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "tp_comm_overlap": True,
        "attention_backend": "fused",
    }
    best, belief = given.replace(won), fit_surrogate([], limit_gib=None)
    space = carrying(search(given), given, best, belief, least=WORTH)
    found = [each.recipe for each in islice(prospects(space, None, belief, ()), 40)]
    assert all(each.knob("attention_backend") == "fused" for each in found)
    assert all(each.knob("tp_comm_overlap") == (each.knob("tensor_model_parallel_size") > 1) for each in found)


def test_what_evens_out_the_experts_load_is_carried_on_gpus_too() -> None:
    given = gpu_recipe()
    best = given.replace({"moe_expert_capacity_factor": 1.25, **EACH_STEP})
    base = carrying(search(given), given, best, nothing_ran(), least=WORTH).finals.candidates.base
    assert base.knob("moe_expert_capacity_factor") == 1.25
    assert base.knob("manual_gc_interval") == given.knob("manual_gc_interval")


def collecting(share: float) -> Analysis:
    """A step in which garbage is collected for such a share, the rest computed."""
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


def first_proposal(base: Recipe, seen: Analysis) -> Recipe:
    given = msgspec.structs.replace(outcome(base), cpu_us=[1.9 * STEP_US] * 3, cores_per_rank=1.0)
    ran: Trial = trial(base, given=given, seen=seen)
    policy = LearnedPolicy(base, 1)
    proposals = (policy.propose(ran, phase, [ran]) for phase in PHASES)
    found = next(proposal for proposal in proposals if proposal)
    assert "garbage collection" in found.because
    return found.recipe


def test_garbage_collection_that_is_the_largest_part_is_cured_by_the_first_step() -> None:
    assert first_proposal(cpu_recipe(EACH_STEP), collecting(0.7)).knob("manual_gc_interval") >= 10


def prospect(*, gain: float, deviation: float, noise: float) -> Prospect:
    return Prospect(
        recipe=cpu_recipe(), log_step=0.0, deviation=deviation, noise=noise, gain=gain, fits=1.0, worth=0.1, score=0.1
    )


def test_what_no_part_is_expected_to_move_is_tried_only_where_bursts_tell_so_little() -> None:
    assert prospect(gain=0.0, deviation=0.05, noise=0.1).vague
    assert not prospect(gain=0.0, deviation=0.05, noise=0.0).vague
    assert not prospect(gain=0.0, deviation=0.2, noise=0.1).vague
    assert not prospect(gain=0.05, deviation=0.05, noise=0.1).vague
    assert prospect(gain=0.02, deviation=0.05, noise=0.3).vague


def test_a_cure_of_a_wall_is_left_where_two_bursts_would_not_tell_it() -> None:
    assert lost(0.5, expected=0.05, most=0.25)
    assert not lost(0.1, expected=0.05, most=0.25)
    assert not lost(0.0, expected=0.001, most=0.01)
