"""Refusals of Megatron-Bridge by release, and knobs it cannot express."""

from __future__ import annotations

from typing import Any

from trainer.frameworks.megatron_bridge.refusals import findings_for, refused
from trainer.recipe import Recipe


def recipe(gpu: str = "h100", **knobs: Any) -> Recipe:
    document = {"name": "r", "model": "qwen3-30b-a3b", "cluster": {"gpu": gpu, "nodes": 2}}
    return Recipe.model_validate(document).replace({"expert_model_parallel_size": 8, **knobs})


def rules(given: Recipe, version: str) -> set[str]:
    return {finding.rule for finding in refused(given, version)}


def test_refusals_of_a_releases_megatron_core_hold_for_that_release() -> None:
    whole = recipe(cuda_graph_impl="full_iteration", use_te_rng_tracker=True, overlap_moe_expert_parallel_comm=True)
    assert "ep-overlap-local-graphs" in rules(whole, "0.3.1")
    assert "ep-overlap-local-graphs" not in rules(whole, "0.6.2")


def test_a_dispatcher_that_bridge_refuses_on_a_platform_is_an_error_to_it() -> None:
    assert "deepep-platform" in rules(recipe("gb200", moe_token_dispatcher_type="flex"), "0.6.2")
    assert "deepep-platform" not in rules(recipe(moe_token_dispatcher_type="flex"), "0.6.2")


def test_a_knob_that_bridge_cannot_express_is_a_warning_that_names_it() -> None:
    found = [each for each in findings_for(recipe(cpu_affinity="spread")) if each.rule == "not-expressed"]
    assert [each.knobs for each in found] == [("cpu_affinity",)]
