"""An empty cell of a table that estimates read is an error or a note that names it: nothing else takes its place."""

from __future__ import annotations

import csv
from importlib.resources import files
from io import StringIO
from typing import Any

import pytest

from trainer.errors import BadInputError
from trainer.estimate.memory import activations
from trainer.estimate.memory import bound as memory_bound
from trainer.estimate.memory import constants as memory_constants
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.time import bound as time_bound
from trainer.estimate.time import constants as time_constants
from trainer.estimate.time import quantization
from trainer.estimate.time.estimate import estimate_time
from trainer.measured import links, software
from trainer.recipe import gpu_figures, hardware, models, tables
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
# columns of names, not figures: an empty cell means that there is none
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
    table, silent = read_table("models.csv"), list[str]()
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


# other tables of the estimate: package, and what reads the table
TABLES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "memory.csv": ("trainer.estimate.memory", (memory_constants._constants,)),
    "memory_calibration.csv": ("trainer.estimate.memory", (memory_bound.calibrations,)),
    "activations.csv": ("trainer.estimate.memory", (activations.tensor_table,)),
    "constants.csv": ("trainer.estimate.time", (time_constants.constant_table, time_constants.constants)),
    "time_calibration.csv": ("trainer.estimate.time", (time_bound.time_calibrations,)),
    "quantization.csv": ("trainer.estimate.time", (quantization._recipes,)),
    "software.csv": ("trainer.measured", (software.releases,)),
    "links.csv": ("trainer.measured", (links.shares, links.copies, time_constants.constants)),
    "models.csv": ("trainer.recipe", (models.presets,)),
}


class Written:
    """Tables of the packages, with other rows for one of them while it is `table`."""

    def __init__(self, table: str, rows: list[dict[str, str]]) -> None:
        self.table, self.rows = table, rows

    def __call__(self, package: str) -> Any:
        return self if package == TABLES[self.table][0] else files(package)

    def __truediv__(self, name: str) -> Any:
        return self if name == self.table else files(TABLES[self.table][0]) / name

    def read_text(self, encoding: str) -> str:
        text = StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]))
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


def _said(readers: tuple[Any, ...]) -> str:
    """Returns what reading a table again says; empty if nothing is refused."""
    for reader in readers:
        reader.cache_clear()
    try:
        for reader in readers:
            reader()
    except BadInputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("table", TABLES)
def test_a_blank_cell_of_any_other_table_is_named_or_its_column_moves_nothing(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column whose cells can all be blank moves no figure of the five recipes; in any other column every cell is
    named alone. Columns of models.csv that a reader does not need are blanked for each recipe above."""
    package, readers = TABLES[table]
    written = Written(table, read_table(table, package=package))
    whole, silent = [_estimated(*recipe) for recipe in RECIPES], list[str]()
    monkeypatch.setattr(tables, "files", written)
    rows = written.rows
    for column in models.NEEDED if table == "models.csv" else rows[0]:
        written.rows = [row | {column: ""} for row in rows]
        if not _said(readers):
            silent += [f"{table} {column}"] * ([_estimated(*recipe) for recipe in RECIPES] != whole)
            continue
        for number, row in enumerate(rows):
            name = next(iter(row.values())) if column != next(iter(row)) else f"row {number + 1}"
            written.rows = [*rows[:number], row | {column: ""}, *rows[number + 1 :]]
            said = _said(readers) if row[column] else f"{column} {name}"
            if column not in said or name not in said:
                silent.append(f"{table} {name} {column}: {said}")
    monkeypatch.undo()
    assert _said(readers) == ""
    assert not silent
