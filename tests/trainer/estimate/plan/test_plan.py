"""The search for settings: what it offers is legal, fits and honours what is frozen; what is missing has a reason."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from autotune.looks.recipes import setting_words
from tests.draws import few
from tests.rows import filled
from trainer.estimate.candidates import table
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.choices import choices, missing
from trainer.estimate.plan.scored import EQUAL_WITHIN, Figures, Scored, best_of_each_layout
from trainer.estimate.plan.search import Search, search
from trainer.estimate.time.bound import FEATURE_SPREAD, PAIR_SPREAD
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import load_recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.schema import Recipe
from trainer.recipe.source import Source


def recipe(model: Any = "qwen3-30b-a3b", **fields: Any) -> Recipe:
    data = {"name": "r", "model": model, "cluster": {"gpu": "h100", "nodes": 2}}
    return recipe_from(Source(name="r", data=data | fields))


@pytest.fixture(scope="module")
def found() -> Search:
    return search(recipe())


def test_every_choice_is_legal_and_fits_by_the_upper_bound(found: Search) -> None:
    shown = choices(found, 10)
    assert len(shown) == 10
    for choice in shown:
        assert not [finding for finding in check(choice.recipe) if finding.kind is FindingKind.ERROR]
        assert choice.fits
        assert choice.needs_gib <= (choice.recipe.memory_limit_gib or np.inf)
        assert choice.because


def test_a_choice_has_the_figures_that_its_recipe_is_estimated_with(found: Search) -> None:
    for choice in filled(choices(found, 3)):
        assert choice.upper_gib == pytest.approx(estimate_memory(choice.recipe).upper_gib)
        assert choice.tokens_per_s_per_gpu == pytest.approx(estimate_time(choice.recipe).tokens_per_s_per_gpu)
        assert sum(choice.time_by_part.values()) == pytest.approx(choice.step_s)
        assert sum(choice.memory_by_part.values()) == pytest.approx(choice.peak_gib)


def test_layouts_are_shown_once_and_the_fastest_first(found: Search) -> None:
    shown = choices(found, 10)
    sizes = [tuple(getattr(c.layout, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")) for c in shown]
    assert len(set(sizes)) == len(sizes)
    rates = [choice.tokens_per_s_per_gpu for choice in shown]
    assert all(later <= earlier * 1.005 for earlier, later in pairwise(rates))


def test_the_staged_search_finds_what_trying_everything_finds() -> None:
    """On a small cluster every combination can be estimated: the first choice is the best of all."""
    from trainer.estimate.plan.legality import broken
    from trainer.estimate.plan.search import estimated
    from trainer.estimate.plan.space import crossed, foundation, layouts, settings

    base = foundation(recipe(cluster={"gpu": "h100", "nodes": 1}))
    places, options = layouts(base), settings(base)
    rows = np.repeat(np.arange(places.count), options.count)
    every = crossed(places, options, rows, np.tile(np.arange(options.count), places.count))
    verdicts, _ = broken(every)
    every = every.take(~np.logical_or.reduce(list(verdicts.values())))
    figures = estimated(every)
    best = figures.tokens_per_s_per_gpu[figures.needs_gib <= (base.memory_limit_gib or np.inf)].max()
    shown = choices(search(recipe(cluster={"gpu": "h100", "nodes": 1})), 1)
    assert shown[0].tokens_per_s_per_gpu >= best * 0.997


def test_frozen_knobs_and_what_changes_numbers_stay_as_they_are() -> None:
    frozen = {"freeze": ["tensor_model_parallel_size", "moe_token_dispatcher_type", "recompute_granularity"]}
    base = recipe(tune=frozen, parallelism={"tp": 2}, knobs={"sequence_parallel": True})
    for choice in filled(choices(search(base), 5)):
        assert choice.recipe.knob("tensor_model_parallel_size") == 2
        assert choice.recipe.knob("moe_token_dispatcher_type") == "alltoall"
        assert choice.recipe.knob("recompute_granularity") is None
        assert choice.recipe.training.precision == "bf16"
        assert choice.recipe.training.global_batch_size == base.training.global_batch_size


def test_the_output_projection_is_searched_in_mxfp8_where_numbers_may_change() -> None:
    blackwell = {"gpu": "gb200", "nodes": 4, "gpus_per_node": 4}
    columns = search(recipe(tune={"allow": "numerics-changing"}, cluster=blackwell)).finals.candidates.columns
    pairs = zip(*(columns[name].each(str) for name in ("precision", "fp8_output_proj")), strict=True)
    assert {precision for precision, narrow in pairs if narrow == "True"} == {"mxfp8"}
    equivalent = search(recipe(cluster=blackwell)).finals.candidates
    assert "fp8_output_proj" not in equivalent.columns


def test_precision_moves_only_where_numbers_may_change() -> None:
    found = search(recipe(tune={"allow": "numerics-changing"}))
    assert set(found.finals.candidates.columns["precision"].choices) == {"bf16", "fp8_blockwise", "fp8_current"}
    frozen = search(recipe(tune={"allow": "numerics-changing", "freeze": ["precision"]}))
    assert "precision" not in frozen.finals.candidates.columns


def test_an_expected_layout_that_is_not_shown_has_its_reason(found: Search) -> None:
    reasons = {one.layout: one.because for one in missing(found, choices(found, 3))}
    assert all(reasons.values())
    assert any("slower" in because for because in reasons.values())
    own = next(because for layout, because in reasons.items() if "own" in layout)
    assert "GiB" in own or "slower" in own


def test_what_cannot_fit_says_how_much_it_needs() -> None:
    found = search(recipe(model="deepseek-v3", cluster={"gpu": "h100", "nodes": 1}))
    shown = choices(found, 3)
    assert shown
    assert not any(choice.fits for choice in shown)
    assert all("GiB of 79.18" in choice.because for choice in shown)
    needs = [choice.needs_gib for choice in shown]
    assert needs == sorted(needs)


def test_of_layouts_alike_in_throughput_one_with_data_parallelism_goes_first() -> None:
    base = recipe(model="qwen3-30b-a3b", cluster={"gpu": "h100", "nodes": 1})
    rows = table(base, {"tensor_model_parallel_size": [8, 4, 2]})  # DP 1, 2, 4
    tokens = np.array([100.0, 100.0 * (1 - EQUAL_WITHIN / 2), 99.0])
    figures = Figures(
        tokens_per_s_per_gpu=tokens, needs_gib=np.array([10.0, 20.0, 5.0])
    )  # by throughput alone, the first would lead
    scored = Scored(candidates=rows, figures=figures, fits=np.ones(3, dtype=bool), layout=np.arange(3))
    assert best_of_each_layout(scored).tolist() == [1, 0, 2]


def test_layers_that_do_not_divide_are_given_a_layout() -> None:
    found = search(recipe(model="deepseek-v3", cluster={"gpu": "h100", "nodes": 64}))
    shown = choices(found, 20)
    assert any(choice.recipe.knob("pipeline_model_parallel_layout") for choice in shown)


def test_an_illegal_recipe_is_planned_all_the_same() -> None:
    illegal = recipe(parallelism={"tp": 3, "pp": 5})
    assert any(finding.kind is FindingKind.ERROR for finding in check(illegal))
    assert choices(search(illegal), 1)[0].fits


def test_a_choice_runs_as_it_is_written() -> None:
    """Checks that Megatron would change no setting silently, and that the needed environment is part of the recipe."""
    for choice in filled(choices(search(recipe(model="qwen3-235b-a22b", cluster={"gpu": "gb200", "nodes": 16})), 5)):
        kinds = {finding.kind for finding in check(choice.recipe)}
        assert FindingKind.FALLBACK not in kinds
        assert FindingKind.AUTOSET not in kinds


def test_what_no_choice_can_cure_is_set_aside() -> None:
    """GPTModel cannot build this model's layers whatever the layout: its layouts are ranked all the same."""
    found = search(recipe(model="nemotron-3-nano-30b-a3b"))
    assert found.unavoidable == {"hybrid-model"}
    assert choices(found, 1)[0].fits


def test_a_model_that_no_preset_knows_is_planned_by_its_fields() -> None:
    fields = {"num_layers": 30, "hidden_size": 3072, "num_attention_heads": 24, "vocab_size": 100000}
    unknown = recipe(model=fields | {"num_moe_experts": 48, "moe_router_topk": 4, "moe_ffn_hidden_size": 1024})
    assert choices(search(unknown), 1)[0].fits


def test_a_cpu_without_a_known_limit_takes_everything_as_fitting() -> None:
    found = search(load_recipe("cpu-moe"))
    assert found.outlined.fits.all()
    assert len(found.ranking) > 1


def test_offload_is_chosen_where_nothing_else_fits_and_said_to_cost() -> None:
    data = {"model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 4}}
    recipe = recipe_from(Source(name="small", data=data | {"training": {"global_batch_size": 64}}))
    (choice,) = choices(search(recipe), 1)
    assert choice.fits
    assert choice.recipe.knob("optimizer_cpu_offload")
    assert choice.because.startswith("offload exposed")
    assert "offload optimizer" in setting_words(choice.recipe)
    roomy = recipe_from(Source(name="roomy", data=data | {"cluster": {"gpu": "h100", "nodes": 2}}))
    assert not any(each.recipe.knob("optimizer_cpu_offload") for each in choices(search(roomy), 3))


def test_offload_is_chosen_where_its_room_surely_buys_more_than_its_copies_cost() -> None:
    base = recipe("mixtral-8x22b", cluster={"gpu": "h100", "nodes": 4}, training={"global_batch_size": 1024})
    frozen = base.model_copy(update={"tune": base.tune.model_copy(update={"freeze": ("optimizer_cpu_offload",)})})
    free, without = (choices(search(each), 1)[0] for each in (base, frozen))
    assert free.fits
    assert without.fits
    assert free.recipe.knob("optimizer_cpu_offload")
    assert free.tokens_per_s_per_gpu > (1 + np.hypot(PAIR_SPREAD, FEATURE_SPREAD)) * without.tokens_per_s_per_gpu


@pytest.mark.parametrize(("nodes", "batch"), few([(32, 2048), (128, 8192)], 1))
def test_offload_whose_gain_is_not_sure_is_named_and_not_chosen(nodes: int, batch: int) -> None:
    training = {"global_batch_size": batch, "precision": "fp8_blockwise"}
    found = search(recipe("deepseek-v3", cluster={"gpu": "h100", "nodes": nodes}, training=training))
    shown = choices(found, 5)
    assert not any(choice.recipe.knob("fine_grained_activation_offloading") for choice in filled(shown))
    (left_out,) = [each for each in missing(found, shown) if each.layout.startswith("activation offload with ")]
    gain, least, most = (
        float(figure) / 100
        for figure in re.findall(r"(\d+) % faster.* interval ([-+]\d+) to ([-+]\d+) %", left_out.because)[0]
    )
    assert 0.1 < gain < 0.2
    assert least < 0
    assert (1 + most) / (1 + least) == pytest.approx((1 + np.hypot(PAIR_SPREAD, FEATURE_SPREAD)) ** 2, rel=0.02)


def test_what_a_release_is_known_to_fail_with_is_no_choice_for_a_trainer_of_that_release() -> None:
    cluster = {"gpu": "gb200", "nodes": 4, "gpus_per_node": 4}
    long = {"seq_length": 65536, "global_batch_size": 64}

    def planned(**trainer: str) -> Recipe:
        trained = {"trainer": {**trainer, "command": ["train.py"]}, "burst": {"engine": "command"}} if trainer else {}
        return recipe("qwen3-next-80b-a3b", cluster=cluster, training=long, **trained)

    failing = {finding.rule for finding in check(planned().replace({"context_parallel_size": 4}))}
    assert "delta-net-cp-argument" in failing
    old = planned(kind="megatron-lm", version="core_v0.18.0")
    found = search(old)
    assert all(choice.layout.cp == 1 for choice in filled(choices(found, 5)))
    assert any("known to fail: a gated delta net over CP" in one.because for one in missing(found, choices(found, 5)))
    for other in (planned(), planned(kind="megatron-lm"), planned(kind="megatron-bridge", version="0.5")):
        assert any(choice.layout.cp > 1 for choice in filled(choices(search(other), 5)))


def test_context_ranks_exchange_in_the_fastest_legal_way_and_a_frozen_way_stays() -> None:
    long = recipe(
        "deepseek-v3",
        cluster={"gpu": "h100", "nodes": 32},
        training={"seq_length": 65536, "global_batch_size": 512, "precision": "fp8_blockwise"},
        knobs={"cp_comm_type": "p2p"},
    )
    sizes = {"tensor_model_parallel_size": 1, "context_parallel_size": 16, "pipeline_model_parallel_size": 8}
    sizes |= {"expert_model_parallel_size": 32, "micro_batch_size": 1}
    base = long.replace(sizes)
    free, frozen = (
        base.model_copy(update={"tune": base.tune.model_copy(update={"freeze": tuple(names)})})
        for names in (sizes, [*sizes, "cp_comm_type"])
    )
    kinds = {each.recipe.knob("cp_comm_type") for each in filled(choices(search(free), 5))}
    assert kinds <= {"a2a", "a2a+p2p"}
    assert {each.recipe.knob("cp_comm_type") for each in filled(choices(search(frozen), 5))} == {"p2p"}


def test_the_whole_iteration_is_captured_only_where_experts_have_one_shape() -> None:
    from trainer.estimate.plan.space import settings

    static = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    kinds = [set(settings(recipe(knobs=knobs)).column("cuda_graph_impl").choices) for knobs in ({}, static)]
    assert ["full_iteration" in each for each in kinds] == [False, True]
