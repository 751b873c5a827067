"""What a trainer refuses is paid for once: the cause is found, and nothing else with it is proposed."""

from __future__ import annotations

from policies.learned import LearnedPolicy
from policies.refusals import refusals

from policies.trial import Phase, Status, Trial, Verdict
from tests.policies.drawn import gpu_recipe, trial
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.recipe import Recipe

TORCH_NORM = "AssertionError: sequence parallel not supported by torch LayerNorm"


def refused(
    recipe: Recipe, said: str, *, number: int = 1, kind: FailureKind = FailureKind.CONFIG, parent: Trial | None = None
) -> Trial:
    failure = Failure(kind=kind, phase=BurstPhase.INIT, rank=0, evidence=f"rank 0 exited with code 1 in init: {said}")
    found = trial(recipe, number=number, parent=parent, given=Outcome(failure=failure), verdict=Verdict.REJECTED)
    object.__setattr__(found, "status", Status.FAILED)
    return found


def test_the_value_that_the_trainer_names_is_the_cause() -> None:
    ran, tensor = trial(gpu_recipe()), {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    (found,) = refusals([ran, refused(gpu_recipe(tensor), TORCH_NORM)])
    assert found.values == {"sequence_parallel": (True,)}
    assert found.meets(gpu_recipe({"tensor_model_parallel_size": 4, "sequence_parallel": True}))
    assert not found.meets(gpu_recipe({"tensor_model_parallel_size": 2}))
    assert not found.meets(gpu_recipe({"sequence_parallel": True}))  # it cannot act without TP
    assert str(found).startswith("trial 1 was refused for sequence_parallel True: rank 0 exited")


def test_a_package_that_is_not_there_names_what_needs_it() -> None:
    deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    said = "ImportError: DeepEP is not installed. Please install DeepEP package."
    (found,) = refusals([trial(gpu_recipe()), refused(gpu_recipe(deepep), said, kind=FailureKind.IMPORT)])
    assert found.values == {"moe_flex_dispatcher_backend": ("deepep",)}


def test_without_a_name_only_all_of_it_is_refused_until_a_second_refusal_has_less_in_common() -> None:
    ran, said = trial(gpu_recipe()), "RuntimeError: unsupported configuration (code 7)"
    one = refused(gpu_recipe({"moe_permute_fusion": True, "moe_router_fusion": True}), said)
    two = refused(gpu_recipe({"moe_permute_fusion": True, "manual_gc": True}), said.replace("7", "19"), number=2)
    (first,) = refusals([ran, one])
    assert first.values.keys() == {"moe_permute_fusion", "moe_router_fusion"}
    (both,) = refusals([ran, one, two])
    assert both.values == {"moe_permute_fusion": (True,)}


def test_a_number_is_refused_in_its_layout_alone_until_it_is_seen_twice() -> None:
    ran, said = trial(gpu_recipe()), "ValueError: global batch size (256) is not divisible by micro batch size (8)"
    (found,) = refusals([ran, refused(gpu_recipe({"micro_batch_size": 8}), said)])
    assert found.meets(gpu_recipe({"micro_batch_size": 8}))
    assert not found.meets(gpu_recipe({"micro_batch_size": 8, "expert_model_parallel_size": 8}))
    said = "AssertionError: context parallel size 2 needs the fused attention"
    (found,) = refusals([ran, refused(gpu_recipe({"context_parallel_size": 2}), said)])
    assert found.meets(gpu_recipe({"context_parallel_size": 2, "expert_model_parallel_size": 8}))


def test_what_ended_later_or_broke_a_rule_of_ours_teaches_no_refusal() -> None:
    ran, tensor = trial(gpu_recipe()), gpu_recipe({"tensor_model_parallel_size": 2, "sequence_parallel": True})
    crash = refused(tensor, TORCH_NORM, kind=FailureKind.CRASH)
    ours = refused(tensor, TORCH_NORM)
    object.__setattr__(ours, "bursts", ())
    assert refusals([ran, crash, ours]) == ()
    assert refusals([refused(tensor, TORCH_NORM)]) == ()  # nothing ran: anything may be the cause


def test_the_learned_policy_proposes_nothing_with_the_cause() -> None:
    base = gpu_recipe({"expert_model_parallel_size": 8})
    policy, ran = LearnedPolicy(base, seed=1), trial(base)
    tensor = base.replace({"tensor_model_parallel_size": 2, "sequence_parallel": True})
    trials = [ran, refused(tensor, TORCH_NORM, parent=ran)]
    for number in range(2, 8):
        proposal = policy.propose(ran, Phase.SCALE, trials)
        if proposal is None:
            break
        assert not proposal.recipe.knob("sequence_parallel") or proposal.recipe.knob("tensor_model_parallel_size") == 1
        trials.append(refused(proposal.recipe, f"AssertionError: no {number}", number=number, parent=ran))
