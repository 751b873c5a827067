"""Checks the time that offload to the host costs, by estimate and by simulation, against measured steps."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from benchmarks.places import data_file
from tests.trainer.estimate.time.test_time import recipe_of
from trainer.engines.simulated.step import Simulation
from trainer.errors import BadInputError
from trainer.estimate.time.estimate import TimeEstimate, estimate_time
from trainer.recipe.machine import Machine

# Qwen3-30B on two nodes of H100: the recipe of rows E016 to E020 of effects.csv, as far as they name it
MEASURED: dict[str, Any] = {
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "pipeline_model_parallel_size": 2,
    "expert_model_parallel_size": 4,
    "global_batch_size": 8,
    "use_precision_aware_optimizer": True,
    "grad_reduce_in_fp32": False,
}


def _optimizer(share: float, **knobs: Any) -> dict[str, Any]:
    return {**MEASURED, "optimizer_cpu_offload": True, "optimizer_offload_fraction": share, **knobs}


def test_an_offloaded_optimizer_takes_what_was_measured() -> None:
    with data_file("effects.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    plain, whole = recipe_of(nodes=2, **MEASURED), recipe_of(nodes=2, **_optimizer(1.0))
    hidden = recipe_of(nodes=2, **_optimizer(1.0, overlap_cpu_optimizer_d2h_h2d=True))
    shares = {row: recipe_of(nodes=2, **_optimizer(share)) for row, share in (("E016", 0.25), ("E017", 0.5))}
    for name, before, after in (
        *((row, plain, recipe) for row, recipe in shares.items()),
        ("E019", plain, whole),
        ("E020", whole, hidden),
    ):
        measured_s = 1e-3 * (float(rows[name]["after"]) - float(rows[name]["before"]))
        estimated = estimate_time(after).step_s - estimate_time(before).step_s
        played = 1e-6 * (Simulation(after, Machine()).step_us - Simulation(before, Machine()).step_us)
        assert estimated == pytest.approx(measured_s, rel=0.15), name
        assert played == pytest.approx(measured_s, rel=0.15), name


def _timed(**knobs: Any) -> TimeEstimate:
    return estimate_time(recipe_of("gb200", nodes=8, **knobs))


def test_offloaded_activations_hide_behind_compute_and_slow_it() -> None:
    fine: dict[str, Any] = {"fine_grained_activation_offloading": True, "NVTE_CPU_OFFLOAD_V1": 1}
    plain, some = _timed(), _timed(**fine, offload_modules=("moe_act",))
    more = _timed(**fine, offload_modules=("moe_act", "expert_fc1", "core_attn"))
    layers = _timed(cpu_offloading=True, cpu_offloading_num_layers=12)
    assert plain.by_part["offload_s"] == 0
    for found in (some, more, layers):
        assert 0 < found.by_part["offload_exposed_s"] < found.by_part["offload_s"]
        assert found.step_s > plain.step_s
    assert more.by_part["offload_s"] > some.by_part["offload_s"]
    slow = estimate_time(recipe_of("h100", nodes=4, **fine, offload_modules=("moe_act",)))
    assert slow.by_part["offload_s"] > 2 * some.by_part["offload_s"]


def test_offload_without_a_known_link_to_the_host_is_refused() -> None:
    given = {"name": "own", "memory_gib": 80, "bf16_tflops": 900, "hbm_tb_s": 3.0, "nvlink_gb_s": 400}
    recipe = recipe_of(nodes=1)
    cluster = {"gpu": given, "gpus_per_node": 8}
    offloading = recipe.replace({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5})
    own = type(recipe).model_validate(offloading.model_dump() | {"cluster": cluster})
    with pytest.raises(BadInputError, match="host_link_gb_s is not known"):
        estimate_time(own)
    declared = type(recipe).model_validate(
        own.model_dump() | {"cluster": cluster | {"gpu": given | {"host_link_gb_s": 64}}}
    )
    assert estimate_time(declared).by_part["offload_s"] > 0
