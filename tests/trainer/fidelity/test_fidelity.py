"""Tests of the proxies of recipes: what each GPU does stays, what is smaller follows the rules."""

from __future__ import annotations

import pytest

from trainer.fidelity import Fidelity, NoProxy, NoProxyKind, at_fidelity, fidelities_of, full_size, proxy_of
from trainer.recipe import Recipe
from trainer.recipe.layout import layer_counts_of_ranks, layers_of_ranks, layout_of
from trainer.recipe.rules.check import errors_of


def recipe_of(model: str, nodes: int, knobs: dict[str, object] | None = None, **sizes: int) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "target",
            "model": model,
            "cluster": {"gpu": "h100", "nodes": nodes},
            "training": {"global_batch_size": 2048},
            "parallelism": sizes,
            "knobs": {"use_distributed_optimizer": True, "moe_grouped_gemm": True, **(knobs or {})},
        }
    )


DEEPSEEK = recipe_of(
    "deepseek-v3",
    64,
    {"pipeline_model_parallel_layout": "Et*4|(t*4|)*14tmL", "overlap_p2p_comm": True},
    pipeline_model_parallel_size=8,
    expert_model_parallel_size=16,
    virtual_pipeline_model_parallel_size=2,
)
QWEN = recipe_of("qwen3-235b-a22b", 32, pipeline_model_parallel_size=2, expert_model_parallel_size=16)


def proxies(recipe: Recipe, nodes: int) -> list[tuple[Fidelity, Recipe]]:
    found = list(fidelities_of(recipe, most_nodes=nodes))
    assert found
    return found


@pytest.mark.parametrize("recipe", [DEEPSEEK, QWEN], ids=lambda recipe: str(recipe.model))
def test_a_proxy_is_legal_and_does_on_each_gpu_what_the_target_does(recipe: Recipe) -> None:
    assert not errors_of(recipe)
    target = layout_of(recipe)
    for fidelity, proxy in proxies(recipe, 8):
        assert not errors_of(proxy)
        small = layout_of(proxy)
        assert full_size(proxy) == fidelity
        assert proxy_of(recipe, fidelity) == proxy
        assert (small.tp, small.cp, small.ep, small.etp) == (target.tp, target.cp, target.ep, target.etp)
        assert proxy.num_microbatches == recipe.num_microbatches
        assert proxy.training.micro_batch_size == recipe.training.micro_batch_size
        assert set(layer_counts_of_ranks(proxy)) <= set(layer_counts_of_ranks(recipe))
        assert proxy.architecture.num_moe_experts == recipe.architecture.num_moe_experts


def test_the_chunks_of_a_stage_keep_their_layers() -> None:
    proxy = next(proxy for _, proxy in proxies(DEEPSEEK, 8) if layout_of(proxy).pp == 4)
    chunks = [[len(chunk) for chunk in rank] for rank in layers_of_ranks(proxy)]
    of_target = [[len(chunk) for chunk in rank] for rank in layers_of_ranks(DEEPSEEK)]
    assert chunks[0] == of_target[0]
    assert chunks[-1] == of_target[-1]
    assert layout_of(proxy).vpp == 2
    assert proxy.architecture.mtp_num_layers == 1


def test_the_dense_first_layers_stay_on_the_first_stage() -> None:
    proxy = next(proxy for _, proxy in proxies(DEEPSEEK, 8) if layout_of(proxy).pp == 4)
    first = layers_of_ranks(proxy)[0][0]
    assert [proxy.architecture.moe_layers[layer] for layer in first] == [False, False, False, True]
    assert sum(proxy.architecture.moe_layers) == proxy.architecture.num_layers - 3


def test_one_stage_alone_is_a_middle_one() -> None:
    fidelity, proxy = proxies(DEEPSEEK, 2)[0]
    assert layout_of(proxy).pp == 1
    assert all(proxy.architecture.moe_layers)
    assert proxy.knob("pipeline_model_parallel_layout") is None
    assert proxy.parallelism.virtual_pipeline_model_parallel_size is None
    assert fidelity == Fidelity(nodes=2, layers=8)


def test_a_layer_keeps_its_kind_in_a_hybrid_model() -> None:
    target = recipe_of("nemotron-3-nano-30b-a3b", 8, pipeline_model_parallel_size=4, expert_model_parallel_size=8)
    for _, proxy in proxies(target, 2):
        kept = layers_of_ranks(target)
        kinds = proxy.architecture.layer_kinds
        assert len(kinds) == proxy.architecture.num_layers
        if layout_of(proxy).pp == 2:
            wanted = [*kept[0][0], *kept[3][0]]
            assert list(kinds) == [target.architecture.layer_kinds[layer] for layer in wanted]


def test_no_proxy_says_why_with_its_figures() -> None:
    assert proxy_of(QWEN, full_size(QWEN)) == NoProxy(
        kind=NoProxyKind.NOT_SMALLER, figures={"nodes": 32, "target_nodes": 32}
    )
    assert proxy_of(QWEN, Fidelity(nodes=4, layers=50)) == NoProxy(
        kind=NoProxyKind.STAGES, figures={"layers": 50, "of_stages": [47, 94]}
    )
    assert proxy_of(QWEN, Fidelity(nodes=1, layers=47)) == NoProxy(
        kind=NoProxyKind.EXPERTS, figures={"gpus": 8, "group": 16}
    )
    wide = QWEN.replace({"tensor_model_parallel_size": 4, "context_parallel_size": 4, "sequence_parallel": True})
    assert proxy_of(wide, Fidelity(nodes=1, layers=47)) == NoProxy(
        kind=NoProxyKind.GRID, figures={"gpus": 8, "group": 16}
    )
    with pytest.raises(ValueError, match="has no proxy of"):
        at_fidelity(QWEN, Fidelity(nodes=1, layers=47))


def test_instances_of_the_optimizer_that_a_smaller_dp_has_no_room_for_are_one() -> None:
    many = recipe_of("qwen3-235b-a22b", 32, {"num_distributed_optimizer_instances": 8}, expert_model_parallel_size=8)
    found = proxy_of(many, Fidelity(nodes=2, layers=94))
    assert isinstance(found, Recipe)
    assert found.knob("num_distributed_optimizer_instances") == 1


def test_a_rule_that_only_the_proxy_breaks_is_named() -> None:
    offloaded: dict[str, object] = {"cpu_offloading": True, "cpu_offloading_num_layers": 90}
    found = proxy_of(
        recipe_of("qwen3-235b-a22b", 32, offloaded, expert_model_parallel_size=8, pipeline_model_parallel_size=2),
        Fidelity(nodes=2, layers=47),
    )
    assert isinstance(found, NoProxy)
    assert found.kind is NoProxyKind.RULES
    assert found.figures["rules"]


def test_proxies_of_as_many_layers_are_one_size() -> None:
    uneven = recipe_of(
        "glm-4.5",
        64,
        {"pipeline_model_parallel_layout": "Ett|(ttt|)*29tt|tmL"},
        pipeline_model_parallel_size=32,
        expert_model_parallel_size=8,
    )
    assert not errors_of(uneven)
    found = proxies(uneven, 4)
    assert len({fidelity for fidelity, _ in found}) == len(found)
    assert [at_fidelity(uneven, fidelity) for fidelity, _ in found] == [proxy for _, proxy in found]


def test_a_recipe_is_its_own_run_at_full_size() -> None:
    assert at_fidelity(DEEPSEEK, None) is DEEPSEEK


def test_the_digests_of_target_and_proxy_differ_and_the_targets_stays() -> None:
    before = DEEPSEEK.digest()
    _, proxy = proxies(DEEPSEEK, 2)[0]
    assert DEEPSEEK.digest() == before != proxy.digest()
