"""An empty cell of a table that estimates read is an error or a note that names it: nothing else takes its place."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any

import pytest

from trainer.errors import BadInputError
from trainer.estimate.memory import constants as memory_constants
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.time.estimate import estimate_time
from trainer.measured import constants as time_constants
from trainer.measured import links, software
from trainer.recipe import gpu_figures, hardware, models
from trainer.recipe.hardware import PEAK_FIELD, known_hardware
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source
from trainer.recipe.tables import read_table

FLEX = {"moe_token_dispatcher_type": "flex", "use_distributed_optimizer": True, "moe_grouped_gemm": True}
OPTIMIZER = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5, "use_precision_aware_optimizer": True}
FINE = {"fine_grained_activation_offloading": True, "offload_modules": ["moe_act"]}
# five recipes, each on another GPU: model, GPU, precision, knobs
RECIPES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("deepseek-v3", "h100", "fp8_blockwise", FLEX | OPTIMIZER),
    ("qwen3-235b-a22b", "gb200", "mxfp8", FLEX | FINE | {"moe_flex_dispatcher_backend": "hybridep"}),
    ("qwen3-30b-a3b", "b200", "fp8_current", FLEX),
    ("gpt-oss-20b", "h200", "bf16", {}),
    ("mixtral-8x7b", "b300", "nvfp4", OPTIMIZER),
)
# columns that name something beside figures: empty means that there is nothing to name
NAMES = {"gpu": "the key of the row", "reference": "the fitted shares are of the row's own peak"}


def _estimated(model: str, gpu: str, precision: str, knobs: dict[str, Any]) -> tuple[tuple[float, float], str]:
    """Returns ((step s, upper bound GiB), notes)."""
    data = {
        "name": "blank",
        "model": model,
        "cluster": {"gpu": gpu, "nodes": 16},
        "training": {"precision": precision, "global_batch_size": 1024},
        "parallelism": {"ep": 8, "pp": 2},
        "knobs": knobs,
    }
    recipe = recipe_from(Source(name="blank", data=data))
    time, memory = estimate_time(recipe), estimate_memory(recipe)
    return (time.step_s, memory.upper_gib), "\n".join((*time.assumptions, *memory.assumptions))


def _forget() -> None:
    for cached in (known_hardware, gpu_figures._composed):
        cached.cache_clear()


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the rows of hardware.csv as read, which a test may change."""
    found = read_table("hardware.csv")
    monkeypatch.setattr(hardware, "read_table", lambda name: found)
    yield found
    monkeypatch.undo()
    _forget()


def test_a_blank_cell_of_a_gpu_moves_nothing_or_is_named(rows: list[dict[str, str]]) -> None:
    silent = []
    for recipe in RECIPES:
        row = next(row for row in rows if row["gpu"].split()[0].lower() == recipe[1])
        _forget()
        whole, _ = _estimated(*recipe)
        for column in [name for name, cell in row.items() if cell and name not in NAMES]:
            cell, row[column] = row[column], ""
            _forget()
            try:
                figures, said = _estimated(*recipe)
            except BadInputError as error:
                figures, said = (0.0, 0.0), str(error)
            named = any(name in said for name in (column, PEAK_FIELD.get(column, column)))
            if figures != whole and not named:
                silent.append(f"{recipe[1]} {column}: {whole} is {figures}: {said[:80]}")
            row[column] = cell
    assert not silent


def _silent_cells(recipe: tuple[str, str, str, dict[str, Any]], patch: pytest.MonkeyPatch) -> list[str]:
    """Returns the cells of the recipe's model that change its figures when they are blank, and that nothing names."""
    table, silent = read_table("models.csv"), []
    patch.setattr(models, "read_table", lambda *_: table)
    models.presets.cache_clear()
    whole, _ = _estimated(*recipe)
    row = next(row for row in table if row["model"].lower() == recipe[0])
    for column in [name for name, cell in row.items() if cell and name != "model"]:
        cell, row[column] = row[column], ""
        models.presets.cache_clear()
        try:
            figures, said = _estimated(*recipe)
        except BadInputError as error:
            figures, said = (0.0, 0.0), str(error)
        if figures != whole and column not in said:
            silent.append(f"{recipe[0]} {column}: {whole} is {figures}: {said[:80]}")
        row[column] = cell
    patch.undo()
    models.presets.cache_clear()
    return silent


def test_a_blank_cell_of_a_model_moves_nothing_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = ("qwen3-next-80b-a3b", "gb200", "bf16", FLEX)
    assert not [cell for recipe in (*RECIPES, hybrid) for cell in _silent_cells(recipe, monkeypatch)]


@pytest.mark.thorough
def test_a_blank_cell_of_any_model_moves_nothing_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [row["model"].lower() for row in read_table("models.csv")]
    assert not [cell for name in names for cell in _silent_cells((name, "gb300", "bf16", FLEX), monkeypatch)]


def _reads(module: ModuleType, read: Callable[[], object], table: list[dict[str, str]], patch: Any) -> str:
    """Returns what reading the table with these rows says; nothing where it is read."""
    patch.setattr(module, "read_table", lambda *_, **__: table)
    try:
        read()
    except BadInputError as error:
        return str(error)
    return ""


TABLES: tuple[tuple[ModuleType, Callable[[], object], str, str, tuple[str, ...]], ...] = (
    (memory_constants, memory_constants._constants.__wrapped__, "memory.csv", "trainer.estimate.memory", ("value",)),
    (
        time_constants,
        lambda: time_constants.read_constants("constants.csv", package="trainer.estimate.time"),
        "constants.csv",
        "trainer.estimate.time",
        ("prior", "value"),
    ),
    (software, software.releases.__wrapped__, "software.csv", "trainer.measured", ("fused_grouped_mlp",)),
    (models, models.presets.__wrapped__, "models.csv", "trainer.recipe", models.NEEDED),
    (links, links.shares.__wrapped__, "links.csv", "trainer.measured", ("share",)),
)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[2])
def test_a_blank_figure_of_any_other_table_is_an_error(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, read, name, package, columns = table
    whole = read_table(name, package=package)
    assert _reads(module, read, whole, monkeypatch) == ""
    silent = []
    for number, row in enumerate(whole):
        for column in columns:
            changed = deepcopy(whole)
            changed[number][column] = ""
            said = _reads(module, read, changed, monkeypatch)
            if column not in said or next(iter(row.values())) not in said:
                silent.append(f"{name} {next(iter(row.values()))} {column}: {said}")
    assert not silent
