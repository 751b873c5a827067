"""What `plan` found, as its JSON document and as the terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from rich.table import Column, Table
from rich.text import Text

from autotune.looks.quantities import gib, knob_value, significant
from autotune.looks.recipes import layout_words, setting_words
from autotune.looks.wrapping import plain_console
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.choices import Choice, Missing, choices, missing
from trainer.estimate.plan.familiar import SIZES
from trainer.estimate.plan.feasible import MOST_GPUS, fewest_nodes
from trainer.estimate.plan.search import Search, search
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.rules.rule import Finding

SCHEMA = 1
BAR = 8  # characters of a throughput bar
UNRANKED = "no memory limit is known: everything counts as fitting"


class Layout(TypedDict):
    """One choice: a legal layout with the settings that serve it best, what it should give, and why it is here."""

    rank: int  # its place, from 1
    changes: dict[str, tuple[Any, Any]]  # from the recipe to the choice, knob: [from, to]
    sizes: dict[str, int]
    data_parallel_size: int
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    step_s: float
    spread: float  # relative half width of the interval
    peak_gib: float
    upper_gib: float
    outside_gib: float  # what a GPU holds beside the allocator
    fits: bool  # by the upper bound
    hottest: dict[str, int]  # pp_rank: the pipeline rank that needs most
    time_by_part: dict[str, float]  # seconds; they add up to the step
    memory_by_part: dict[str, float]  # GiB of the hottest rank
    because: str


class Excluded(TypedDict):
    by_rule: dict[str, int]  # layouts that a rule forbids, by its id
    memory: int  # legal layouts of which no setting fits


class PlanDocument(TypedDict):
    """`plan --json`."""

    schema: int
    limit_gib: float | None
    legal: int  # layouts
    fitting: int  # layouts with a setting that fits
    estimated: int  # settings that were looked at
    fewest_nodes: int | None  # on which a setting fits
    layouts: list[Layout]
    excluded: Excluded
    missing: tuple[Missing, ...]  # layouts that one would expect
    recipe_findings: tuple[Finding, ...]  # errors of the recipe itself
    assumptions: tuple[str, ...]
    file: NotRequired[str | None]  # that -o wrote


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A search and what is told of it. `findings` are the errors of the recipe itself: its layout is what changes."""

    recipe: Recipe
    found: Search
    choices: tuple[Choice, ...]
    missing: tuple[Missing, ...]
    findings: tuple[Finding, ...]
    fewest_nodes: int | None = None  # that a setting fits on, where none fits on the recipe's

    @property
    def limit_gib(self) -> float | None:
        return self.recipe.memory_limit_gib

    @property
    def fitting(self) -> int:
        """Layouts with a setting that fits."""
        return len(set(self.found.outlined.layout[self.found.outlined.fits].tolist()))

    @property
    def assumptions(self) -> tuple[str, ...]:
        if not self.choices:
            return ()
        first = self.choices[0].recipe
        said = (*estimate_time(first).assumptions, *estimate_memory(first).assumptions)
        return (*said, UNRANKED) if self.limit_gib is None else said


def planned(recipe: Recipe, *, top: int) -> Plan:
    found = search(recipe)
    shown = choices(found, top)
    errors = tuple(finding for finding in check(recipe) if finding.kind is FindingKind.ERROR)
    told = missing(found, shown) if shown else []
    fits = bool(found.outlined.fits.any())
    return Plan(
        recipe=recipe,
        found=found,
        choices=tuple(shown),
        missing=tuple(told),
        findings=errors,
        fewest_nodes=None if fits else fewest_nodes(recipe, above=recipe.cluster.nodes),
    )


def plan_document(plan: Plan) -> PlanDocument:
    return {
        "schema": SCHEMA,
        "limit_gib": plan.limit_gib,
        "legal": int(plan.found.legal.sum()),
        "fitting": plan.fitting,
        "estimated": plan.found.estimated,
        "fewest_nodes": plan.recipe.cluster.nodes if plan.fitting else plan.fewest_nodes,
        "layouts": [_choice(plan.recipe, choice, place) for place, choice in enumerate(plan.choices, 1)],
        "excluded": {
            "by_rule": {rule: int(rows.sum()) for rule, rows in plan.found.broken.items()},
            "memory": int(plan.found.legal.sum()) - plan.fitting,
        },
        "missing": plan.missing,
        "recipe_findings": plan.findings,
        "assumptions": plan.assumptions,
    }


def _choice(base: Recipe, choice: Choice, place: int) -> Layout:
    sizes = {name: getattr(choice.layout, name) for name in SIZES}
    return {
        "rank": place,
        "changes": base.diff(choice.recipe),
        "sizes": sizes | {"dp": choice.layout.dp, "micro_batch_size": choice.recipe.training.micro_batch_size},
        "data_parallel_size": choice.layout.dp,
        "tokens_per_s_per_gpu": choice.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": choice.model_tflops_per_gpu,
        "step_s": choice.step_s,
        "spread": choice.spread,
        "peak_gib": choice.peak_gib,
        "upper_gib": choice.upper_gib,
        "outside_gib": choice.outside_gib,
        "fits": choice.fits,
        "hottest": {"pp_rank": choice.pp_rank},
        "time_by_part": choice.time_by_part,
        "memory_by_part": choice.memory_by_part,
        "because": choice.because,
    }


def show_plan(plan: Plan) -> None:
    """The choices with bars, what is missing and why, and how many were looked at."""
    console = plain_console()
    for finding in plan.findings:
        console.print(f"the recipe itself is illegal: {finding.message} [{finding.rule}]", style="yellow")
    console.print(_table(plan.choices))
    if plan.choices:
        console.print(_first(plan))
    if plan.missing:
        console.print()
        table = Table("not shown", "why", box=None)
        for one in plan.missing:
            table.add_row(one.layout, one.because)
        console.print(table)
    for assumption in plan.assumptions:
        console.print(f"note: {assumption}", style="dim")
    if not plan.fitting:
        console.print(unfit_words(plan), style="yellow")
    against = f" in {gib(plan.limit_gib)} per rank" if plan.limit_gib is not None else f": {UNRANKED}"
    console.print(f"{plan.found.legal.sum()} legal layouts, {plan.fitting} fit by upper bound{against}")


def unfit_words(plan: Plan) -> str:
    """What it would take, where nothing fits."""
    each = plan.recipe.world_size // plan.recipe.cluster.nodes
    if plan.fewest_nodes is None:
        return f"nothing fits, not even on {MOST_GPUS:,} GPUs: the smallest peaks are shown"
    gpus = plan.fewest_nodes * each
    return f"nothing fits on {plan.recipe.world_size:,} GPUs; it takes at least {gpus:,} (tried by doubling)"


def _table(shown: Sequence[Choice]) -> Table:
    right = [Column(name, justify="right", no_wrap=True) for name in ("tokens/s/GPU", "TFLOPS", "≤ GiB")]
    table = Table(Column("", justify="right"), "layout, settings, why", *right[:2], "", right[2], box=None)
    fastest = max((choice.tokens_per_s_per_gpu for choice in shown), default=1.0)
    for place, choice in enumerate(shown, 1):
        said = Text(layout_words(choice.recipe), style="bold")
        said.append(f"\n{setting_words(choice.recipe)}", style="not bold").append(
            f"\n{choice.because}", style="not bold dim"
        )
        table.add_row(
            str(place),
            said,
            significant(choice.tokens_per_s_per_gpu, 4),
            significant(choice.model_tflops_per_gpu),
            Text("█" * round(BAR * choice.tokens_per_s_per_gpu / fastest), style="cyan" if choice.fits else "red"),
            Text(significant(choice.needs_gib), style="" if choice.fits else "red"),
        )
    return table


def _first(plan: Plan) -> str:
    """The first choice as lines of a recipe, and how sure it is."""
    first = plan.choices[0]
    changes = ", ".join(f"{name}: {knob_value(to)}" for name, (_, to) in plan.recipe.diff(first.recipe).items())
    return (
        f"\nchoice 1 vs the recipe: {changes or 'nothing to change'}\n"
        f"{significant(first.tokens_per_s_per_gpu, 4)} tokens/s/GPU ± {first.spread:.0%}, "
        f"peak {gib(first.peak_gib)}, upper bound {gib(first.needs_gib)} on pipeline rank {first.pp_rank}"
    )
