"""Rows of a probe that one rank measures: kernels and software."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from tests.rows import filled, for_every_row
from trainer.engines.megatron.device import CpuDevice, Device
from trainer.engines.megatron.one_layer import one_layer_recipe
from trainer.microbenchmarks.groups import rows_of
from trainer.probe.bench import Bench
from trainer.probe.measures import measures
from trainer.probe.probe import probe
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.models import presets

GPU_RECIPE = {
    "name": "small",
    "model": "qwen3-30b-a3b",
    "cluster": {"gpu": "h100", "nodes": 4},
    "training": {"precision": "fp8_current"},
}


@pytest.fixture(scope="module")
def device() -> Device:
    return CpuDevice()


def test_every_kind_of_row_that_is_planned_can_be_measured() -> None:
    recipes = [load_recipe("cpu-moe"), Recipe.model_validate(GPU_RECIPE), load_recipe("deepseek-v3-1024xh100")]
    for recipe in recipes:
        for row in filled(rows_of(recipe)):
            assert row.kind in measures() or row.kind == "small_ring_both", row


def test_the_kernels_of_a_layer_run_at_the_recipes_shapes(device: Device) -> None:
    recipe = load_recipe("cpu-moe").replace({"seq_length": 64})
    bench = Bench(recipe, device, rank=0, world=1)
    for row in filled([row for row in rows_of(recipe) if row.group == "compute"]):
        repeats = measures()[row.kind](bench, row)
        assert repeats is not None
        assert min(repeats) > 0


def test_repeats_do_not_add_their_gradients_up(device: Device) -> None:
    bench = Bench(load_recipe("cpu-moe"), device, rank=0, world=1)
    weight = bench.tensor(4, 4, grad=True)
    (bench.tensor(4, 4) @ weight).sum().backward()
    assert weight.grad is None


def test_latent_attention_and_its_products_run_too(device: Device) -> None:
    recipe = load_recipe("deepseek-v3-1024xh100")
    fields = {"hidden_size": 128, "num_attention_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16}
    small = recipe.architecture.model_copy(update=fields | {"moe_ffn_hidden_size": 32, "num_moe_experts": 16})
    recipe = recipe.model_copy(update={"model": small}).replace({"seq_length": 32, "precision": "bf16"})
    bench = Bench(recipe, device, rank=0, world=1)
    for kind in ("gemm", "attention", "memory_bound", "permute", "quantize"):
        row = next(row for row in rows_of(load_recipe("deepseek-v3-1024xh100")) if row.kind == kind)
        plain = {name: value for name, value in row.changes.items() if name != "precision"}
        assert measures()[kind](bench, type(row)(group="compute", kind=kind, name=kind, unit="us", changes=plain))


def test_a_collection_of_garbage_searches_what_is_imported(device: Device) -> None:
    bench = Bench(load_recipe("cpu-moe"), device, rank=0, world=1)
    row = next(row for row in rows_of(load_recipe("cpu-moe")) if row.kind == "garbage")
    gc.freeze()
    try:
        assert measures()["garbage"](bench, row)
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()  # the suite's own imports


def test_software_that_works_measures_1_and_software_that_is_not_installed_raises(device: Device) -> None:
    bench = Bench(load_recipe("cpu-moe"), device, rank=0, world=1)
    row = next(row for row in rows_of(load_recipe("cpu-moe")) if row.kind == "profiler")
    assert measures()["profiler"](bench, row) == [1.0]
    with pytest.raises(ImportError):
        measures()["deepep"](bench, row)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.megatron
def test_gpus_measure_what_is_installed_there(tmp_path: Path) -> None:
    data = GPU_RECIPE | {"cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": torch.cuda.device_count()}}
    recipe = Recipe.model_validate(data | {"training": {"precision": "bf16"}})
    found = probe(recipe, home=tmp_path / "engine", folder=tmp_path / "probe", rows=rows_of(recipe))
    kinds = {row.kind for row in found.rows if row.measured is not None}
    assert {"gemm", "grouped", "attention", "memory_bound", "permute", "launch", "outside", "layer_kept"} <= kinds


@for_every_row(sorted(presets()))
def test_one_layer_of_every_model_is_a_model(name: str) -> None:
    recipe = Recipe.model_validate({"name": "one", "model": name, "cluster": {"gpu": "h100", "nodes": 8}})
    found = one_layer_recipe(recipe.replace({"expert_model_parallel_size": 4}), moe=True, world=2).architecture
    assert (found.num_layers, len(found.layer_kinds)) == (1, 1)
    assert found.num_moe_experts == max(1, (recipe.architecture.num_moe_experts or 1) // 4)
