"""Published training runs of MoE models as recipes, and the run most similar to a recipe.

`published.csv` has one row per run: model, GPUs, release, source, rate, and the settings that differ from their
defaults. Settings that the source leaves open are those of NVIDIA's recipe for the same model, GPU and precision.
`python -m benchmarks.published_table` makes the table from the collected rows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.errors import refused
from trainer.measured.software import releases
from trainer.model.flops import model_flops_per_token
from trainer.recipe.architecture import Architecture
from trainer.recipe.models import presets
from trainer.recipe.schema import Recipe
from trainer.recipe.source import near
from trainer.recipe.tables import figure, read_table

TABLE = "published.csv"
ROW = re.compile(r"[Pp]\d{1,4}")
MTP, CAPACITY = "mtp_num_layers", "moe_expert_capacity_factor"
FAST = 0.95  # share of the fastest similar run's rate: slower runs do not show what is attainable (judged)
SIZES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_moe_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
)
FLOPS_AT, FLOPS_AGREE = 4096, 0.02  # tokens of a sequence; a padded vocabulary moves FLOPs by less (judged)


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published measurement. `trusted` is false if its source says "around" or omits settings."""

    row: str
    release: str  # a row of software.csv
    source: str  # file, line and commit
    trusted: bool
    recipe: Recipe
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float

    @property
    def model(self) -> str:
        """Returns the name of the run's model."""
        return _model_name(self.recipe)


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The published run most similar to a recipe, or the one that the user named.

    `differs`: differences that change its rate, (here, there) by name; if it is empty, the run is comparable.
    """

    run: Published
    differs: dict[str, tuple[Any, Any]]
    named: bool = False

    @property
    def comparable(self) -> bool:
        return not self.differs


@cache
def published_runs() -> dict[str, Published]:
    """Returns the runs by name of their row."""
    return {row["row"]: _run(row) for row in read_table(TABLE, package="trainer.estimate.gap")}


def is_row(text: str) -> bool:
    """Returns whether a text has the form of a published run's name, such as P0358."""
    return ROW.fullmatch(text) is not None


def published_run(row: str) -> Published:
    """Returns one run. Raises BadInputError, with similar names, for an unknown row."""
    found = published_runs().get(row.upper())
    if found is None:
        close = near(row.upper(), published_runs())
        hint = f"did you mean {', '.join(close)}?" if close else "rows are listed in published.csv, such as P0358"
        raise refused("--against", f"no published run {row!r}", hint)
    return found


def nearest_published(recipe: Recipe) -> Nearest | None:
    """Returns the run to compare a recipe with; None on CPUs, for which nothing is published.

    Of the runs with the most similar work (model, GPU, precision, number of GPUs, sequence length, token dropping) it
    considers those nearly as fast as the fastest, and takes the one whose settings differ least, of these a trusted
    one, then the newest.
    """
    if recipe.hardware.is_cpu:
        return None
    runs = list(published_runs().values())
    work = {run.row: _distance(recipe, run) for run in runs}
    least = min(work.values())
    alike = [run for run in runs if work[run.row] == least]
    fastest = max(run.tokens_per_s_per_gpu for run in alike)
    ages = {name: age for age, name in enumerate(reversed(releases()))}
    best = min(
        (run for run in alike if run.tokens_per_s_per_gpu >= FAST * fastest),
        key=lambda run: (len(recipe.diff(run.recipe)), not run.trusted, ages[run.release], run.row),
    )
    return Nearest(run=best, differs=dict(_differences(recipe, best)))


def compared_with(recipe: Recipe, run: Published) -> Nearest:
    """Returns a run that the user named, with its differences from the recipe."""
    return Nearest(run=run, differs=dict(_differences(recipe, run)), named=True)


def _differences(recipe: Recipe, run: Published) -> Iterator[tuple[str, tuple[Any, Any]]]:
    there = run.recipe
    if not same_model(recipe.architecture, there.architecture):
        yield "model", (_model_name(recipe), _model_name(there))
    if recipe.cluster.gpu_name != there.cluster.gpu_name:
        yield "gpu", (recipe.cluster.gpu_name, there.cluster.gpu_name)
    if recipe.training.precision != there.training.precision:
        yield "precision", (recipe.training.precision, there.training.precision)


def _distance(recipe: Recipe, run: Published) -> tuple[float, ...]:
    """Returns a key that orders runs by how different their work is from a recipe's: model, then GPU, precision, token
    dropping, kind of GPU and model size, then doublings of GPUs and sequence length together."""
    there, differs = run.recipe, dict(_differences(recipe, run))
    flops = [model_flops_per_token(each.architecture, recipe.training.seq_length) for each in (recipe, there)]
    lengths = (recipe.training.seq_length, there.training.seq_length)
    doublings = abs(math.log2(recipe.world_size / there.world_size)) + abs(math.log2(lengths[0] / lengths[1]))
    return (
        float("model" in differs),
        float("gpu" in differs),
        float("precision" in differs),
        float(bool(recipe.knob(CAPACITY)) != bool(there.knob(CAPACITY))),
        float(recipe.hardware.fitted_as != there.hardware.fitted_as),
        abs(math.log2(flops[0] / flops[1])) if "model" in differs else 0.0,
        doublings,
    )


def same_model(one: Architecture, other: Architecture) -> bool:
    """Returns whether two models are equal except for MTP and details that a log may omit: equal sizes, and agreeing
    FLOPs per token."""
    if any(getattr(one, name) != getattr(other, name) for name in SIZES):
        return False
    here, there = (model_flops_per_token(_without_mtp(each), FLOPS_AT) for each in (one, other))
    return abs(here / there - 1) < FLOPS_AGREE


def _without_mtp(model: Architecture) -> Architecture:
    return model.model_copy(update={MTP: None})


def _model_name(recipe: Recipe) -> str:
    model = recipe.architecture
    same = (name for name, preset in presets().items() if same_model(preset, model))
    return next(same, f"{model.num_layers} layers of {model.hidden_size}")


def _run(row: dict[str, str]) -> Published:
    model: Any = row["model"]
    if row["mtp"] == "no":
        model = presets()[model].model_copy(update={MTP: None}).model_dump()
    settings = json.loads(row["settings"])
    recipe = Recipe.model_validate(
        {
            "name": row["row"],
            "model": model,
            "cluster": {
                "gpu": row["gpu"],
                "nodes": int(row["nodes"]),
                "gpus_per_node": int(row["gpus_per_node"]),
            },
        }
    )
    return Published(
        row=row["row"],
        release=row["release"],
        source=row["source"],
        trusted=row["trusted"] == "yes",
        recipe=recipe.replace({name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}),
        tokens_per_s_per_gpu=figure(row, "tokens_per_s_per_gpu", table=TABLE),
        model_tflops_per_gpu=figure(row, "model_tflops_per_gpu", table=TABLE),
    )
