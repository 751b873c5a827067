"""Checks the findings of one framework, by version."""

from __future__ import annotations

from trainer.recipe import Recipe
from trainer.recipe.frameworks import check_for
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.rules.rule import FrameworkName

FLEX = "shared-overlap-flex"


def given(model: str = "qwen3-30b-a3b", gpu: str = "h100", **knobs: object) -> Recipe:
    return Recipe.model_validate({"name": "r", "model": model, "cluster": {"gpu": gpu, "nodes": 2}}).replace(knobs)


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


def test_flex_with_the_overlap_is_an_error_to_an_old_core_and_later_adjusted_by_bridge_alone() -> None:
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


def test_what_older_releases_train_wrongly_is_an_error_to_them_and_what_is_slight_a_warning() -> None:
    parameters = given(
        gpu="b200",
        precision="mxfp8",
        use_distributed_optimizer=True,
        fp8_param_gather=True,
        reuse_grad_buf_for_mxfp8_param_ag=True,
    )
    norm = given(
        tensor_model_parallel_size=2, sequence_parallel=True, expert_model_parallel_size=8, moe_grouped_gemm=True
    )
    kinds = {
        (rule, version): [found.kind for found in check_for(recipe, framework, version) if found.rule == rule]
        for rule, recipe in (("mxfp8-params-without-overlap", parameters), ("expert-gradient-norm", norm))
        for framework in (FrameworkName.MEGATRON_LM, FrameworkName.MEGATRON_BRIDGE)
        for version in ("0.16.1", "head")
    }
    assert kinds == {
        ("mxfp8-params-without-overlap", "0.16.1"): [FindingKind.ERROR],
        ("mxfp8-params-without-overlap", "head"): [],
        ("expert-gradient-norm", "0.16.1"): [FindingKind.WARNING],
        ("expert-gradient-norm", "head"): [],
    }


def test_biases_of_gpt_oss_with_a_graph_of_delayed_gradients_are_refused_since_0_17() -> None:
    recipe = given(
        model="gpt-oss-20b",
        expert_model_parallel_size=8,
        overlap_moe_expert_parallel_comm=True,
        delay_wgrad_compute=True,
        overlap_grad_reduce=True,
        cuda_graph_impl="transformer_engine",
        cuda_graph_scope=("attn",),
        use_te_rng_tracker=True,
    )
    for version, refused in (("0.16.1", False), ("0.17", True), ("head", True)):
        found = {each.rule for each in check_for(recipe, FrameworkName.MEGATRON_BRIDGE, version)}
        assert ("delayed-wgrad-bias" in found) == refused
        assert "delayed-wgrad-hooks" in found
