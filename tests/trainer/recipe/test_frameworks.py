"""What one framework says, and in which versions."""

from __future__ import annotations

from trainer.recipe import Recipe
from trainer.recipe.frameworks import check_for
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.rules.rule import FrameworkName

FLEX = "shared-overlap-flex"


def given(**knobs: object) -> Recipe:
    plain = Recipe.model_validate({"name": "r", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 2}})
    return plain.replace(dict(knobs))


def errors(recipe: Recipe, framework: FrameworkName) -> set[str]:
    return {found.rule for found in check_for(recipe, framework) if found.kind is FindingKind.ERROR}


def test_what_one_framework_alone_refuses_is_an_error_to_it_alone() -> None:
    gathered = given(overlap_param_gather=True, use_distributed_optimizer=True)
    whole = given(fp8_param_gather=True, precision="fp8_current", use_distributed_optimizer=False)
    for recipe, rule in ((gathered, "param-gather-needs-grad-overlap"), (whole, "fp8-params-need-sharding")):
        assert rule in errors(recipe, FrameworkName.MEGATRON_LM)
        assert rule not in {found.rule for found in check_for(recipe, FrameworkName.MEGATRON_BRIDGE)}
        assert [found.kind for found in check(recipe) if found.rule == rule] == [FindingKind.WARNING]


def test_a_warning_to_everyone_is_an_error_to_the_framework_that_stops() -> None:
    two = given(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    assert "vpp-two-stages" in errors(two, FrameworkName.MEGATRON_LM)
    assert "vpp-two-stages" not in errors(two, FrameworkName.MEGATRON_BRIDGE)


def test_what_one_framework_mends_and_an_old_core_refuses_is_an_error_to_the_others() -> None:
    flex = given(moe_shared_expert_overlap=True, moe_token_dispatcher_type="flex")
    shared = flex.replace({}).model_copy(
        update={"model": flex.architecture.model_copy(update={"moe_shared_expert_intermediate_size": 768})}
    )
    kinds = {
        (framework, version): {found.kind for found in check_for(shared, framework, version) if found.rule == FLEX}
        for framework in (FrameworkName.MEGATRON_LM, FrameworkName.MEGATRON_BRIDGE)
        for version in ("0.16.1", "head")
    }
    assert kinds == {
        (FrameworkName.MEGATRON_LM, "0.16.1"): {FindingKind.ERROR},
        (FrameworkName.MEGATRON_LM, "head"): set(),
        (FrameworkName.MEGATRON_BRIDGE, "0.16.1"): {
            FindingKind.ERROR
        },  # 0.3.1 stops: python -m benchmarks.exports_bridge
        (FrameworkName.MEGATRON_BRIDGE, "head"): {FindingKind.AUTOSET},
    }
