"""Prints `plan`: the choices with bars, what is missing and why, and the number of layouts searched."""

from __future__ import annotations

from rich.console import Console

from autotune.looks.quantities import gib, gpu_or_rank, percent, significant, tokens_per_s
from autotune.looks.recipes import layout_words, setting_words
from autotune.looks.text_tables import Entry, print_entries
from autotune.looks.wrapping import plain_console, say
from autotune.plan.document import UNRANKED, Plan, machine_words, memory_words, simulated_words, unfit_words
from trainer.values import knob_value

FIGURES = ("TFLOPS", "≤ GiB")  # columns after the throughput


def show_plan(plan: Plan) -> None:
    console = plain_console()
    for finding in plan.findings:
        say(console, f"the recipe itself is illegal: {finding.message} [{finding.rule}]", style="yellow")
    rate = f"tokens/s/{gpu_or_rank(plan.recipe.cluster.gpu_name)}"
    print_entries(console, "layout, settings, why", (rate, *FIGURES), _entries(plan))
    if plan.choices:
        console.print()
        _show_first(console, plan)
    if plan.machine is not None:
        say(console, machine_words(plan))
    console.print()
    if plan.missing:
        say(console, "why others are not shown", style="bold")
        for one in plan.missing:
            say(console, f"{one.layout}: {one.because}", lead=" - ")
        console.print()
    for assumption in plan.assumptions:
        say(console, assumption, lead="note: ", style="dim")
    if not plan.fitting:
        say(console, unfit_words(plan), style="yellow")
    against = f" in {gib(plan.limit_gib)} per rank" if plan.limit_gib is not None else f": {UNRANKED}"
    say(console, f"{plan.found.legal.sum():,} legal layouts, {plan.fitting:,} fit by upper bound{against}")


def _entries(plan: Plan) -> list[Entry]:
    """Returns an entry for each choice: figures, and below them its settings, its reason and its simulation."""
    shown = plan.choices
    fastest = max((choice.tokens_per_s_per_gpu for choice in shown), default=1.0)
    return [
        Entry(
            title=layout_words(choice.recipe),
            figures=(
                significant(choice.tokens_per_s_per_gpu, 4),
                significant(choice.model_tflops_per_gpu),
                significant(choice.needs_gib),
            ),
            below=tuple(filter(None, (setting_words(choice.recipe), choice.because, simulated_words(plan, place)))),
            share=choice.tokens_per_s_per_gpu / fastest,
            style="cyan" if choice.fits else "red",
        )
        for place, choice in enumerate(shown)
    ]


def _show_first(console: Console, plan: Plan) -> None:
    """Prints the changes of the first choice, with the uncertainty of its estimate."""
    first = plan.choices[0]
    changes = ", ".join(f"{name}: {knob_value(to)}" for name, (_, to) in plan.recipe.diff(first.recipe).items())
    say(console, f"choice 1 vs the recipe: {changes or 'nothing to change'}")
    rate = tokens_per_s(first.tokens_per_s_per_gpu, unit=gpu_or_rank(plan.recipe.cluster.gpu_name))
    say(console, f"{rate} ± {percent(first.spread, 0)}, {memory_words(first)} on pipeline rank {first.pp_rank}")
