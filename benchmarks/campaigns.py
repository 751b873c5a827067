"""Compares the tuner with experts: published trajectories replayed on one simulated machine each.

    python -m benchmarks.campaigns [--only WORDS] [--budget K]

A case of data/campaigns.csv is a recipe and what its experts changed, one by one, as far as knobs can express it. The
machine is the default one with its compute and host slowed (or sped up) alike until the first recipe has its published
rate; then the expert's recipes and the tuner run on it, case by case. A step counts as found from the first burst after
which the exported recipe has and keeps every value that the step set.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.places import data_file, table_rows
from benchmarks.policy.ground import Ground
from benchmarks.policy.scenarios import Scenario
from benchmarks.policy.tuned import exported_after, run_policy
from trainer.engines.simulated import true_throughput
from trainer.model.flops import model_flops_per_token
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine
from trainer.recipe.models import presets

SLOWED = ("dense_gemm", "grouped_gemm", "attention", "memory_bound")
FURTHEST = 8.0  # a machine is made at most this many times slower or faster
HALVINGS = 24
SEED = 7
BUDGET = 20


@dataclass(frozen=True, kw_only=True)
class ExpertChange:
    """One change that a human tuner made. `recipe` is None if no knob expresses it. Rates are tokens/s/GPU."""

    change: str
    published: float
    sets: dict[str, Any]
    recipe: Recipe | None


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    note: str
    steps: tuple[ExpertChange, ...]

    @property
    def first(self) -> Recipe:
        recipe = self.steps[0].recipe
        assert recipe is not None
        return recipe

    @property
    def replayed(self) -> list[ExpertChange]:
        return [step for step in self.steps if step.recipe is not None]


def read_cases() -> list[Case]:
    rows = table_rows(data_file("campaigns.csv"))
    names = dict.fromkeys(row["case"] for row in rows)
    return [_case(name, [row for row in rows if row["case"] == name]) for name in names]


def _case(name: str, rows: Sequence[dict[str, str]]) -> Case:
    recipe, steps = _first(name, json.loads(rows[0]["sets"])), list[ExpertChange]()
    for number, row in enumerate(rows):
        sets = json.loads(row["sets"]) if number and row["sets"] else {}
        recipe = recipe.replace(sets)
        expressed = bool(row["sets"])
        published = _published(recipe, row)
        steps.append(
            ExpertChange(change=row["change"], published=published, sets=sets, recipe=recipe if expressed else None)
        )
    return Case(name=name, note=rows[0]["note"], steps=tuple(steps))


def _first(name: str, data: dict[str, Any]) -> Recipe:
    if changes := data.pop("model_changes", None):
        data["model"] = presets()[data["model"]].model_dump() | changes
    return Recipe.model_validate({"name": name, "burst": {"engine": "simulated"}, **data})


def _published(recipe: Recipe, row: dict[str, str]) -> float:
    training = recipe.training
    if row["step_s"]:
        return training.tokens_per_step / float(row["step_s"]) / recipe.world_size
    return float(row["tflops"]) * 1e12 / model_flops_per_token(recipe.architecture, training.seq_length)


def fitted_machine(recipe: Recipe, tokens_per_s_per_gpu: float) -> Machine:
    """Returns the machine on which the recipe has this rate, or the nearest to it within `FURTHEST`."""
    low, high = -math.log(FURTHEST), math.log(FURTHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rate = true_throughput(recipe, _slowed(math.exp(middle)))
        if rate is not None and rate > tokens_per_s_per_gpu:
            low = middle
        else:
            high = middle
    return _slowed(math.exp((low + high) / 2))


def _slowed(factor: float) -> Machine:
    compute = dict.fromkeys(SLOWED, 1 / factor)
    return Machine.model_validate(
        {"name": f"compute and host {factor:.2f}x", "compute": compute, "host": {"launch": factor}}
    )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Replay of one case.

    Rates are true tokens/s/GPU on the case's machine; 0: does not fit. `found` has, per replayed step, the bursts after
    the base's until the tuner has it; None: never.
    """

    case: Case
    machine: Machine
    expert: list[float]
    tuned: list[float]  # rate after the base's bursts and after every later burst
    found: list[int | None]

    @property
    def bursts_to_expert(self) -> int | None:
        """Returns the bursts until the exported recipe is as fast as the expert's last one; None if it never is."""
        end = self.expert[-1]
        return next((bursts for bursts, rate in enumerate(self.tuned) if end and rate >= end), None)


def replay(case: Case, budget: int) -> Replay:
    machine = fitted_machine(case.first, case.steps[0].published)
    base = _on(case.first, machine)
    ground = Ground(Scenario(name=case.name, start="published", unseen=False, recipe=base, seed=SEED))
    with TemporaryDirectory(prefix="campaign-") as folder:
        _, events = run_policy(ground, Path(folder) / "study", budget)
    exported = exported_after(events)[: budget + 1]
    recipes = [step.recipe for step in case.replayed if step.recipe]
    return Replay(
        case=case,
        machine=machine,
        expert=[ground.truth(_on(recipe, machine)) for recipe in recipes],
        tuned=[ground.truth(recipe) if recipe else 0.0 for recipe in exported],
        found=[_found(step.sets, exported) for step in case.replayed],
    )


def _on(recipe: Recipe, machine: Machine) -> Recipe:
    return recipe.model_copy(update={"burst": recipe.burst.model_copy(update={"machine": machine})})


def _found(sets: dict[str, Any], exported: Sequence[Recipe | None]) -> int | None:
    """Returns the first burst after which every value of the step is and stays in the exported recipe; None if there is
    none."""
    since = None
    for bursts, recipe in enumerate(exported):
        has = recipe is not None and all(_same(recipe.knob(name), value) for name, value in sets.items())
        since = (bursts if since is None else since) if has else None
    return since


def _same(value: object, wanted: object) -> bool:
    return value == (tuple(wanted) if isinstance(wanted, list) else wanted)


def table_of(found: Replay) -> Table:
    """Returns a row per step: published and simulated rates relative to the first recipe's, and the burst after which
    the tuner has it."""
    columns = [Column(name, justify="right") for name in ("published", "simulated", "tuner has it after")]
    title = f"{found.case.name} ({found.machine.name}; {found.case.note})"
    table = Table("expert's step", *columns, box=None, title=title, title_justify="left")
    first, replayed = found.case.steps[0].published, iter(zip(found.expert, found.found, strict=True))
    for step in found.case.steps:
        rate, burst = next(replayed) if step.recipe else (None, None)
        simulated = "" if rate is None else f"{rate / found.expert[0]:.3f}" if rate and found.expert[0] else "no fit"
        after = "no knob" if rate is None else "" if not step.sets else "never" if burst is None else str(burst)
        table.add_row(step.change, f"{step.published / first:.3f}", simulated, after)
    return table


def report_of(found: Replay) -> str:
    """Returns a line with the rate of the tuner's last recipe relative to the expert's last one."""
    end, last = found.expert[-1], found.tuned[-1]
    reached = found.bursts_to_expert
    when = (
        "never as fast as the expert's last recipe"
        if reached is None
        else f"as fast as the expert's last recipe after {reached}"
    )
    best = f"{last / end:.3f} of the expert's last recipe" if end else "the expert's last recipe does not fit here"
    return f"tuner: {best} after {len(found.tuned) - 1} bursts, {when}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds these words")
    parser.add_argument("--budget", type=int, default=BUDGET, help="bursts after the base's")
    options = parser.parse_args()
    console = Console(width=130)
    for case in read_cases():
        if options.only in case.name:
            found = replay(case, options.budget)
            console.print(table_of(found))
            console.print(report_of(found), "\n", highlight=False)


if __name__ == "__main__":
    main()
