"""Previews a bisection without a burst: its differences by prior guilt, and its cost from simulated bisections with a
planted culprit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import median

import msgspec
from rich.console import Console

from autotune.bisect.document import Changed, differences_of, values_text
from autotune.bisect.loop import Problem
from autotune.looks.quantities import counted, gain, gpu_or_rank, percent, significant
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import say
from policies.bisect.question import Observation
from policies.bisect.steps import next_step
from policies.surrogate.time import fit_time
from trainer.estimate.candidates import tabulate

SIMULATIONS = 9  # simulated bisections; the median of their numbers of bursts is shown
CULPRIT_LOG_COST = math.log1p(0.10)  # log time per token that the culprit adds
MAX_BURSTS = 40  # limit on the bursts of one simulated bisection


class BisectPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `bisect --dry-run --json`.

    `bursts`: median of simulated bisections with one culprit of 10 %, both ends included (`bursts_high`: the most);
    hours are by estimate, without startup.
    """

    schema: int = 1
    study: str
    differences: list[Changed]
    idle: list[str]
    bursts: int
    bursts_high: int
    hours: float
    gpu_hours: float


def planned(problem: Problem, *, seed: int) -> BisectPreview:
    """Returns the plan and its cost."""
    counts = sorted(_simulated_bursts(problem, random.Random(seed)))
    recipe = problem.ends.a
    log_step, _ = fit_time([]).predict(tabulate([recipe]))
    burst = recipe.burst
    hours = median(counts) * (burst.warmup_steps + burst.measure_steps) * math.exp(float(log_step[0])) / 3600
    return BisectPreview(
        study=recipe.name,
        differences=differences_of(problem),
        idle=[each.name for each in problem.ends.idle],
        bursts=round(median(counts)),
        bursts_high=counts[-1],
        hours=hours,
        gpu_hours=hours * recipe.world_size,
    )


def _simulated_bursts(problem: Problem, rng: random.Random) -> Iterator[int]:
    """Yields the number of bursts of each simulated bisection, whose culprit is drawn by `guilt`, the prior."""
    question = problem.question
    for _ in range(SIMULATIONS):
        (culprit,) = rng.choices(sorted(question.all), weights=question.guilt)
        seen: list[Observation] = []
        while len(seen) < MAX_BURSTS and (ask := next_step(question, seen).next_subset) is not None:
            cost = CULPRIT_LOG_COST * (culprit in ask) + rng.gauss(0, question.deviation)
            seen.append(Observation(subset=ask, log_cost=cost))
        yield len(seen)


def show_plan(console: Console, plan: BisectPreview, unit_of: str) -> None:
    """Prints the plan, about one screen."""
    say(console, f"{plan.study}: {counted(len(plan.differences), 'difference')} between A and B; nothing is run")
    rows = [(values_text(each), gain(each.predicted.change), percent(each.guilt, 0)) for each in plan.differences]
    print_table(console, "in the order of suspicion", ("<difference, A → B", "predicted", "suspicion"), rows)
    if plan.idle:
        say(console, ", ".join(plan.idle), lead="without effect here: ")
    hours, gpu_hours = significant(plan.hours, 2), significant(plan.gpu_hours, 2)
    console.print()
    most = f"at most {plan.bursts_high} in {SIMULATIONS} simulated bisections"
    text = f"one culprit of 10 % takes about {plan.bursts} bursts, both ends included ({most})"
    say(console, f"{text}: about {hours} h, {gpu_hours} {gpu_or_rank(unit_of)}-hours, startup not counted")
