"""The result of `estimate`: memory by part and by pipeline rank, step time by part, and the errors of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from autotune.estimate.machine import ChosenMachine, UsedMachine, cluster_of
from autotune.estimate.memory import Calibration, Memory, against_limit, calibrated, memory_document
from autotune.looks.quantities import duration, gain, gib, gpu_or_rank, percent, significant, tokens_per_s
from autotune.looks.wrapping import listed, plain_console, say
from trainer.dry_run import DryRun
from trainer.estimate.candidates import one
from trainer.estimate.learned import LearnedCluster
from trainer.estimate.memory.estimate import MemoryEstimate, estimate_memory, memory_of
from trainer.estimate.memory.parts import MEMORY_PARTS, memory_order
from trainer.estimate.not_priced import NotPriced, not_priced
from trainer.estimate.time.bound import time_calibration
from trainer.estimate.time.estimate import TimeEstimate, estimate_time
from trainer.estimate.time.parts import STEP_PARTS
from trainer.frameworks.registry import framework_of
from trainer.recipe import Recipe

SCHEMA = 1
UNPACKED = "sequences of several lengths are packed: each is counted as seq_length long, in attention too"
BAR = 26  # characters of the longest bar if there is room; a rank's bar is twice as long
OTHER_COLUMNS, OTHER_RANK_COLUMNS = 42, 26  # characters of the columns besides the bar
SHOWN = 0.0005  # shares below would read as 0.0 %
GLYPHS = "█▓▒░▚▞▤▥▦"  # one per part of memory, in drawing order


class Time(TypedDict):
    """Predicted time of a step, by part."""

    step_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    spread: float  # relative half width of the 90 % interval
    software: str  # the release whose speeds were used
    by_part: dict[str, float]  # seconds
    calibration: Calibration


class EstimateDocument(TypedDict):
    """Document of `estimate --json`. Memory and time each have their own calibration; the top-level one is that of
    time, whose errors are larger."""

    schema: int
    memory: Memory
    time: Time
    calibration: Calibration
    assumptions: list[str]
    not_priced: tuple[NotPriced, ...]  # settings of the recipe that time or memory ignores
    machine: NotRequired[UsedMachine]  # the machine of --machine
    simulated_step_s: NotRequired[float]  # step in a simulation of the machine of --machine
    dry_run: NotRequired[DryRun]  # the result of --dry-run


class RefusedByMegatron(TypedDict):
    """Document of `estimate --dry-run --json` for a layout that Megatron-Core refuses to build."""

    schema: int
    dry_run: DryRun


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of one recipe. `by_rank`: GiB of every pipeline rank by part, in drawing order."""

    recipe: Recipe
    memory: MemoryEstimate
    by_rank: tuple[dict[str, float], ...]
    time: TimeEstimate
    document: EstimateDocument
    machine: ChosenMachine | None = None

    @property
    def limit_gib(self) -> float | None:
        return self.document["memory"]["limit_gib"]

    @property
    def needs_gib(self) -> float:
        """Returns the memory that must be below the limit, GiB: the upper bound plus what is outside the allocator."""
        return self.memory.upper_gib + self.memory.outside_gib

    @property
    def step_parts(self) -> dict[str, float]:
        """Returns seconds by part; they add up to the step."""
        return {name: self.time.by_part[name] for name in STEP_PARTS}

    @property
    def verdict(self) -> str:
        return against_limit(self.document["memory"])


def estimated(
    recipe: Recipe,
    *,
    imbalance: float | None = None,
    release: str | None = None,
    machine: ChosenMachine | None = None,
) -> Estimate:
    """Estimates one recipe. `imbalance`: tokens of the hottest expert rank over the mean, for the upper bound of memory
    and for the time; `release`: a row of software.csv, None for the latest; `machine`: None for the tables."""
    cluster = cluster_of(machine)
    memory = estimate_memory(recipe, imbalance=imbalance, learned=cluster.memory)
    time = estimate_time(recipe, release=release, imbalance=imbalance, learned=cluster)
    by_part = memory_of(one(recipe), learned=cluster.memory).by_part
    names = memory_order(list(by_part))
    ranks = range(recipe.parallelism.pipeline_model_parallel_size)
    by_rank = tuple({name: float(by_part[name][0, rank]) for name in names} for rank in ranks)
    document = estimate_document(recipe, memory, time, by_rank, imbalance=imbalance, cluster=cluster)
    if machine is not None:
        document["machine"], document["simulated_step_s"] = machine.document, machine.simulated_step_s(recipe)
    return Estimate(recipe=recipe, memory=memory, by_rank=by_rank, time=time, document=document, machine=machine)


def estimate_document(
    recipe: Recipe,
    memory: MemoryEstimate,
    time: TimeEstimate,
    by_rank: tuple[dict[str, float], ...],
    *,
    imbalance: float | None,
    cluster: LearnedCluster,
) -> EstimateDocument:
    figures = memory_document(recipe, imbalance=imbalance, cluster=cluster)
    known = time_calibration(one(recipe))
    timed = calibrated(recipe, rows=known.rows, median_pct=known.median_pct, p90_pct=known.p90_pct)
    return {
        "schema": SCHEMA,
        "memory": {**figures, "by_pp_rank": by_rank},
        "time": {
            "step_s": time.step_s,
            "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
            "model_tflops_per_gpu": time.model_tflops_per_gpu,
            "spread": time.spread,
            "software": time.release,
            "by_part": time.by_part,
            "calibration": timed,
        },
        "calibration": timed,
        "assumptions": [*memory.assumptions, *time.assumptions],
        "not_priced": (*not_priced(recipe), *_packed(recipe)),
    }


def _packed(recipe: Recipe) -> Iterator[NotPriced]:
    """Yields the arguments of the user's command that pack sequences: a recipe has no field for their lengths."""
    for words in framework_of(recipe).packing(() if recipe.trainer is None else recipe.trainer.command):
        yield NotPriced(setting=words, parts=("time", "memory"), why=UNPACKED)


def show_estimate(estimate: Estimate) -> None:
    """Prints memory, time, their errors and assumptions, with bars."""
    console = plain_console()
    bar = _room(console, OTHER_COLUMNS, BAR)
    console.print(_memory_table(estimate, bar))
    console.print()
    console.print(_rank_table(estimate, _room(console, OTHER_RANK_COLUMNS, 2 * BAR)))
    console.print(_letters(estimate), style="dim")
    peak = f"peak {gib(estimate.memory.peak_gib)}, upper bound {gib(estimate.memory.upper_gib)}"
    console.print(f"memory: {peak} on pipeline rank {estimate.memory.hottest['pp_rank']}; {estimate.verdict}\n")
    console.print(_time_table(estimate, bar))
    time = estimate.time
    rate = tokens_per_s(time.tokens_per_s_per_gpu, unit=gpu_or_rank(estimate.recipe.cluster.gpu_name))
    tflops = f"{significant(time.model_tflops_per_gpu)} TFLOPS"
    console.print(f"time: {duration(time.step_s * 1e6)} per step, {rate}, {tflops}, ± {percent(time.spread, 0)}")
    for line in machine_words(estimate):
        say(console, line)
    console.print(f"calibration: {calibration_words(estimate)}")
    for assumption in estimate.document["assumptions"]:
        console.print(f"note: {assumption}", style="dim")
    for line in not_priced_words(estimate):
        console.print(line, style="dim")


def machine_words(estimate: Estimate) -> Iterator[str]:
    """Yields one line on the machine file used, and one on the step in a simulation of that machine."""
    simulated = estimate.document.get("simulated_step_s")
    if estimate.machine is not None and simulated is not None:
        yield estimate.machine.words
        ratio = simulated / estimate.time.step_s - 1
        yield f"simulated on it: {duration(simulated * 1e6)} per step ({gain(ratio)} against the estimate)"


def not_priced_words(estimate: Estimate) -> Iterator[str]:
    """Yields one line on the settings that the time estimate ignores, and one on those that the memory estimate
    ignores."""
    found = estimate.document["not_priced"]
    for part in ("time", "memory"):
        settings = [each.setting for each in found if part in each.parts]
        if settings:
            yield f"not priced in {part}: {', '.join(settings)}"


def calibration_words(estimate: Estimate) -> str:
    """Returns median and 90th percentile of the errors on runs that were held out of the fit."""
    if estimate.recipe.hardware.is_cpu:
        return "from GPU runs only: on CPUs, measure with a burst"
    said = []
    memory, time = (estimate.document[part]["calibration"] for part in ("memory", "time"))
    for what, known in (("memory", memory), ("time", time)):
        errors = known["error_pct"]
        said.append(f"{what} error median {errors['median']:g} %, p90 {errors['p90']:g} %, {known['rows']} runs")
    return "; ".join(said)


def _memory_table(estimate: Estimate, bar: int) -> Table:
    """Returns the parts of the hottest rank, largest first."""
    hottest, peak = estimate.memory.by_part, estimate.memory.peak_gib or 1.0
    table = Table("memory of the hottest rank", _right("GiB"), _right("share"), "", box=None)
    for name, size in sorted(hottest.items(), key=lambda item: -item[1]):
        if size / peak >= SHOWN:
            table.add_row(
                MEMORY_PARTS.get(name, name),
                f"{size:.2f}",
                percent(size / peak),
                _bar(size / max(hottest.values()), bar),
            )
    return table


def _rank_table(estimate: Estimate, columns: int) -> Table:
    """Returns every pipeline rank as one stacked bar, on one scale with the limit."""
    names = list(estimate.by_rank[0])
    totals = [sum(parts.values()) for parts in estimate.by_rank]
    longest = max(*totals, estimate.limit_gib or 0.0, 1e-9)
    table = Table(_right("pipeline rank"), _right("GiB"), "", box=None)
    for rank, (parts, total) in enumerate(zip(estimate.by_rank, totals, strict=True)):
        bar, done = "", 0.0
        for glyph, name in zip(GLYPHS, names, strict=False):
            done += parts[name]
            bar += glyph * (round(done / longest * columns) - len(bar))
        at = round((estimate.limit_gib or 0.0) / longest * columns)
        bar = f"{bar[:at].ljust(at)}│{bar[at:]}" if at else bar
        table.add_row(str(rank), f"{total:.1f}", Text(bar, style="cyan"))
    return table


def _letters(estimate: Estimate) -> str:
    """Returns the legend of the letters that occur in the ranks' bars."""
    names = [name for name in estimate.by_rank[0] if any(parts[name] for parts in estimate.by_rank)]
    glyphs = dict(zip(estimate.by_rank[0], GLYPHS, strict=False))
    letters = [f"{glyphs.get(name, '')} {MEMORY_PARTS.get(name, name)}" for name in names]
    return listed([*letters, f"│ limit {gib(estimate.limit_gib)}"] if estimate.limit_gib else letters)


def _time_table(estimate: Estimate, bar: int) -> Table:
    parts, step = estimate.step_parts, estimate.time.step_s
    table = Table("step time", _right("seconds"), _right("share"), "", box=None)
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        if seconds / step >= SHOWN:
            share = seconds / max(parts.values())
            table.add_row(STEP_PARTS[name], f"{seconds:.3f}", percent(seconds / step), _bar(share, bar))
    return table


def _right(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)


def _bar(share: float, columns: int) -> Text:
    return Text("█" * max(1, round(columns * share)), style="cyan")


def _room(console: Console, other_columns: int, most: int) -> int:
    """Returns the characters available for a bar: a narrow terminal gets shorter bars, not truncated ones."""
    return min(most, max(4, console.width - other_columns))
