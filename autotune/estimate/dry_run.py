"""Runs and prints the dry run of a recipe, for `estimate --dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from autotune.looks.quantities import NONE, gib
from autotune.looks.working import working
from autotune.looks.wrapping import plain_console
from trainer.dry_run import STATE, dry_run, hottest_rank
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe
from trainer.values import knob_value

if TYPE_CHECKING:
    from trainer.dry_run import DryRun, Ended


def dry_run_part(recipe: Recipe, *, requested: bool, pp_rank: int | None) -> dict[str, DryRun]:
    """Runs and prints the dry run; returns the `dry_run` part of the document, or {} if it was not requested.

    `pp_rank`: the pipeline rank, None for the one with the highest estimated memory.
    """
    if not requested:
        if pp_rank is not None:
            raise BadInputError(Problem(where="--pp-rank", what="it is a rank of the dry run", hint="add --dry-run"))
        return {}
    rank = hottest_rank(recipe) if pp_rank is None else pp_rank
    with working(f"Megatron-Core builds and steps pipeline rank {rank}"):
        found = dry_run(recipe, pp_rank=rank)
    show_dry_run(found)
    return {"dry_run": found}


def show_dry_run(found: DryRun) -> None:
    """Prints whether the layout builds, the rank's memory next to the estimate, and what the dry run cannot know."""
    console = plain_console()
    rank = f"pipeline rank {found.pp_rank} (rank {found.rank} of {found.world_size})"
    if found.refused:
        console.print(
            f"Megatron-Core refuses this layout, {rank}: {_ended_words(found.refused)}", highlight=False, soft_wrap=True
        )
    elif found.stopped:
        console.print(
            f"The dry run of {rank} cannot continue: {_ended_words(found.stopped)}", highlight=False, soft_wrap=True
        )
    else:
        took = f"{found.microbatches} micro batches, {found.seconds:.0f} s"
        console.print(f"Megatron-Core builds and steps {rank}: {took}", highlight=False, soft_wrap=True)
    if found.by_part_gib:
        _print_parts(console, found)
    for row in found.stand_ins:
        ran = f"{row['knob']}: {knob_value(row['ran'])} instead of {knob_value(row['asked'])}: {row['why']}"
        console.print(f"note: {ran}", highlight=False, soft_wrap=True)
    for unknown in found.cannot_know:
        console.print(f"not known: {unknown}", highlight=False, soft_wrap=True)


def _print_parts(console: Console, found: DryRun) -> None:
    table = Table("part", Column("dry run GiB", justify="right"), Column("estimate GiB", justify="right"), box=None)
    for part in STATE:
        made = found.by_part_gib.get(part)
        table.add_row(part, NONE if made is None else f"{made:.3f}", f"{found.closed_form_gib[part]:.3f}")
    console.print(table)
    if found.difference_pct is not None:
        console.print(f"dry run over estimate: {found.difference_pct:+.2f} %", highlight=False)
        console.print(f"peak with unfused activations {gib(found.peak_gib)}, in {found.peak_phase}", highlight=False)


def _ended_words(ended: Ended) -> str:
    where = f" ({ended.where})" if ended.where else ""
    return f"in {ended.phase}, {ended.error}: {ended.message}{where}"
