"""A GPU is a row of hardware.csv, or a few figures in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rows import filled
from trainer.engines.simulated import true_throughput
from trainer.errors import BadInputError
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.choices import choices
from trainer.estimate.plan.search import search
from trainer.estimate.time.constants import constants
from trainer.estimate.time.estimate import TimeEstimate, estimate_time
from trainer.measured.architectures import fitted_architectures, of_architecture, of_precision
from trainer.recipe import Recipe, hardware
from trainer.recipe.announced import announced
from trainer.recipe.hardware import PEAK_COLUMN, known_hardware
from trainer.recipe.load import recipe_from
from trainer.recipe.machine import Machine
from trainer.recipe.rules import check
from trainer.recipe.rules.other_gpus import AMD
from trainer.recipe.source import Source
from trainer.recipe.tables import read_table

NAMED = [name for name, gpu in known_hardware().items() if not gpu.is_cpu]
ROW = {
    "gpu": "R100 SXM",
    "architecture": "rubin",
    "vendor": "nvidia",
    "fitted_as": "unfitted",
    "compute_capability": "11.0",
    "precisions": "bf16 fp16 fp8_current mxfp8 nvfp4",
    "plan_precisions": "mxfp8",
    "fp8_copies": "1",
    "flex_backends": "hybridep",
    "host_cpu": "x86",
    "bf16_dense_tflops": "4000",
    "fp8_dense_tflops": "8000",
    "fp4_dense_tflops": "16000",
    "memory_gib": "280",
    "hbm_tb_s": "13",
    "nvlink_unidir_gb_s_per_gpu": "1800",
    "nvlink_domain_gpus": "8",
    "gpus_per_node": "8",
    "scaleout_gbit_s_per_gpu": "800",
    "sms": "160",
    "tdp_w": "1800",
}


def read(gpu: Any, *, knobs: dict[str, Any] | None = None, precision: str = "bf16", **cluster: Any) -> Recipe:
    data = {
        "name": "given",
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": gpu, "nodes": 2, "gpus_per_node": 8} | cluster,
        "training": {"precision": precision, "global_batch_size": 256},
        "parallelism": {"ep": 8},
        "knobs": {"use_distributed_optimizer": True, "moe_router_dtype": "fp32"} | (knobs or {}),
        "tune": {"allow": "numerics-changing"},
    }
    return recipe_from(Source(name="recipe.yaml", data=data))


def refusal(gpu: Any, **cluster: Any) -> str:
    with pytest.raises(BadInputError) as refused:
        read(gpu, **cluster)
    return str(refused.value)


def said(estimate: TimeEstimate) -> str:
    return "\n".join(estimate.assumptions)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """Yields the rows of hardware.csv, to which a test may add before the first use."""
    rows = read_table("hardware.csv")
    monkeypatch.setattr(hardware, "read_table", lambda name: rows)
    for cached in (known_hardware, fitted_architectures):
        cached.cache_clear()
    yield rows
    monkeypatch.undo()
    for cached in (known_hardware, fitted_architectures):
        cached.cache_clear()


def row(**cells: str) -> dict[str, str]:
    return dict.fromkeys(read_table("hardware.csv")[0], "") | ROW | cells


@pytest.mark.parametrize("name", NAMED)
def test_every_gpu_of_the_table_has_the_constants_of_its_architecture(name: str) -> None:
    gpu = known_hardware()[name]
    for constant in ("memory_efficiency", "quantize_expert_time"):
        assert of_architecture(constants(), constant, gpu) > 0
    for precision in PEAK_COLUMN:
        assert of_precision(constants(), "gemm_efficiency", gpu, precision) > 0


def test_a_new_gpu_is_a_row(table: list[dict[str, str]]) -> None:
    table.append(row())
    recipe = read("r100")
    assert estimate_memory(recipe).peak_gib > 0
    estimate = estimate_time(recipe)
    assert estimate.tokens_per_s_per_gpu > estimate_time(read("h100")).tokens_per_s_per_gpu
    assert "GPU r100" in said(estimate)
    assert "an architecture without fitted constants" in said(estimate)
    assert estimate.spread > estimate_time(read("h100")).spread
    assert (true_throughput(recipe, Machine()) or 0) > 0
    found = search(read("r100", nodes=1))
    assert "mxfp8" in {choice.recipe.training.precision for choice in choices(found, 20)}
    assert [finding for finding in check(read("r100", precision="fp8_blockwise")) if finding.rule == "format-suits-gpu"]


def test_an_architecture_without_constants_is_an_error_that_names_what_is_missing(table: list[dict[str, str]]) -> None:
    table.append(row(fitted_as="rubin"))
    with pytest.raises(BadInputError) as refused:
        estimate_time(read("r100"))
    for part in ("hardware.csv r100", "architecture 'rubin'", "rubin.bf16 is missing", "write unfitted in its column"):
        assert part in str(refused.value)


@pytest.mark.parametrize("column", hardware.NEEDED)
def test_a_row_without_a_figure_that_estimates_need_is_refused(table: list[dict[str, str]], column: str) -> None:
    table.append(row(**{column: ""}))
    with pytest.raises(BadInputError, match=f"hardware.csv r100: no figure in {column}"):
        known_hardware()


def test_a_reference_that_is_no_row_or_without_power_is_refused(table: list[dict[str, str]]) -> None:
    table.append(row(reference="gb900"))
    with pytest.raises(BadInputError, match="reference 'gb900' is no row"):
        known_hardware()
    table[-1] |= {"reference": "gb200", "tdp_w": ""}
    with pytest.raises(BadInputError, match="write tdp_w of both"):
        known_hardware()


def test_a_gpu_given_by_figures_is_estimated_planned_and_simulated() -> None:
    recipe = read(AMD | {"compute_units": 304})
    assert recipe.hardware.name == "mi300x"
    assert recipe.memory_limit_gib == 191.5
    assert recipe.peak_tflops == 1307
    estimate = estimate_time(recipe)
    assert "no published run has" in said(estimate)
    assert "GPU mi300x" in said(estimate)
    assert (true_throughput(recipe, Machine()) or 0) > 0
    found = [choice.recipe for choice in choices(search(read(AMD, nodes=1)), 6)]
    dispatchers = {recipe.knob("moe_token_dispatcher_type") for recipe in filled(found)}
    assert dispatchers <= {"alltoall", "allgather"}  # nothing says that DeepEP is built for it
    assert {recipe.training.precision for recipe in found} == {"bf16"}


def test_figures_are_written_and_read_back() -> None:
    recipe = read(AMD | {"precisions": ["bf16", "fp8_current"], "flex_backends": ["deepep"]})
    again = Recipe.model_validate(recipe.model_dump(mode="json"))
    assert again == recipe
    assert again.digest() == recipe.digest()
    assert read(AMD | {"hbm_tb_s": 6.0}).digest() != recipe.digest()


def test_figures_of_an_h100_are_estimated_like_the_h100() -> None:
    """The constants of other architectures differ from Hopper's; the estimate stays within its interval."""
    h100 = known_hardware()["h100"]
    figures = {
        "name": "h100-again",
        "vendor": "nvidia",
        "memory_gib": h100.memory_gib,
        "bf16_tflops": h100.dense_tflops["bf16"],
        "hbm_tb_s": h100.memory_tb_s,
        "nvlink_gb_s": h100.nvlink_gb_s,
        "network_gbit_s": h100.scaleout_gbit_s,
    }
    given, named = estimate_time(read(figures)), estimate_time(read("h100"))
    assert abs(given.step_s / named.step_s - 1) < given.spread
    assert estimate_memory(read(figures)).peak_gib == estimate_memory(read("h100")).peak_gib


@pytest.mark.parametrize("field", ["memory_gib", "bf16_tflops", "hbm_tb_s", "nvlink_gb_s", "name"])
def test_figures_that_estimates_need_are_required(field: str) -> None:
    assert f"cluster.gpu.{field}: missing" in refusal({name: at for name, at in AMD.items() if name != field})


def test_what_figures_leave_open_about_the_cluster_is_asked_for() -> None:
    alone = {name: at for name, at in AMD.items() if name != "network_gbit_s"}
    assert "network_gbit_s" in refusal(alone)
    assert "gpus_per_node" in refusal(AMD, gpus_per_node=None)
    assert read(alone, nodes=1).hardware.scaleout_gbit_s is None
    assert estimate_time(read(alone, nodes=1)).step_s > 0
    assert read(alone, network_gbit_s=200.0).hardware.scaleout_gbit_s == 200


def test_problems_of_figures_name_the_place_and_the_next_step() -> None:
    assert "cluster.gpu.bf16_tflop: unknown key\n    → did you mean bf16_tflops?" in refusal(AMD | {"bf16_tflop": 1.0})
    assert "write `gpu: h100`, or give other figures another name" in refusal(AMD | {"name": "H100"})
    assert "did you mean a100-40gb?" in refusal("a100")
    assert "cluster.gpu.name: 'a b' is no name of a GPU" in refusal(AMD | {"name": "a b"})
    assert "did you mean h100?" in refusal("h1000")


@pytest.mark.parametrize(
    ("precision", "unknown"), [("fp8_current", "fp8_tflops"), ("fp8_current", "fp8_copies"), ("nvfp4", "fp4_tflops")]
)
def test_an_unknown_figure_is_named_and_widens_the_interval(precision: str, unknown: str) -> None:
    full = {"fp8_tflops": 2615.0, "fp4_tflops": 5000.0, "fp8_copies": 2, "host_cpu": "x86"}
    without = estimate_time(read(AMD | {name: at for name, at in full.items() if name != unknown}, precision=precision))
    complete = estimate_time(read(AMD | full, precision=precision))
    assert f"{unknown} is unknown" in said(without)
    assert "is unknown" not in said(complete)
    if unknown.endswith("tflops"):
        assert without.spread > complete.spread


def test_the_simulation_refuses_a_gpu_without_the_figure_it_needs() -> None:
    with pytest.raises(BadInputError, match="compute_units is not known"):
        true_throughput(read(AMD), Machine())


def test_another_network_between_nodes_is_another_experiment() -> None:
    plain, slow = read("h100", nodes=8), read("h100", nodes=8, network_gbit_s=50.0)
    assert slow.hardware.scaleout_gbit_s == 50
    assert slow.digest() != plain.digest()
    assert estimate_time(slow).by_part["dp_s"] > estimate_time(plain).by_part["dp_s"]


def test_a_gpu_announced_without_figures_is_refused_and_its_figures_are_asked_for() -> None:
    assert announced()
    for name in announced():
        data = {"name": "r", "model": "qwen3-30b-a3b", "cluster": {"gpu": name}}
        with pytest.raises(BadInputError) as raised:
            recipe_from(Source(name="r", data=data))
        (problem,) = raised.value.problems
        assert "bf16_tflops" in problem.what
        assert f"name: {name}" in problem.hint
