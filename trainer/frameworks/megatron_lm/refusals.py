"""Checks a recipe for Megatron-LM: the rules of its argument parser, and values for which a version has no flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.frameworks.megatron_lm.batch_schedule import SCHEDULE, schedule_of
from trainer.frameworks.megatron_lm.command import of_a_fork, unmentioned
from trainer.frameworks.megatron_lm.flags import since, version_of
from trainer.frameworks.megatron_lm.model import model_spellings
from trainer.frameworks.megatron_lm.packing import packing_flags
from trainer.frameworks.megatron_lm.required import required_environment
from trainer.frameworks.megatron_lm.spelling import Spelling, knob_spellings, whole_iteration
from trainer.frameworks.packing import packed_findings
from trainer.recipe import Recipe
from trainer.recipe.frameworks import NOT_EXPRESSED, check_for
from trainer.recipe.rules import Finding, FindingKind
from trainer.recipe.rules.rule import MEGATRON_LM, FrameworkName

NO_SUCH_FLAG = "flag-of-version"  # another version has the flag: this one refuses the argument


def findings_for(recipe: Recipe, version: str | None = None) -> list[Finding]:
    """Returns the findings, errors first: violated rules and missing flags.

    Raises BadInputError for an unknown version. Rules see the recipe as it is exported: with variables that it leaves
    open and Megatron-LM requires, and with graphs of the whole iteration spelled for the version.
    """
    known = version_of(version)
    exported = recipe.replace(_completed(recipe, known))
    found = check_for(exported, FrameworkName.MEGATRON_LM, known)
    spellings = (*model_spellings(recipe, known), *knob_spellings(recipe, known))
    lost = [_finding(spelling, known) for spelling in spellings if spelling.lost]
    return sorted([*found, *lost], key=lambda finding: finding.kind is not FindingKind.ERROR)


def command_findings(command: Sequence[str], recipe: Recipe) -> list[Finding]:
    """Returns warnings about settings that the user's command decides instead of the recipe, and about packed data with
    CUDA graphs."""
    left = [_left(field, flag) for field, flag in unmentioned(command, recipe)]
    left += [_not_judged(field, words) for field, words in of_a_fork(command)]
    left += packed_findings(packing_flags(command), recipe, FrameworkName.MEGATRON_LM)
    return left + _scheduled(recipe, command)


def _completed(recipe: Recipe, version: str) -> dict[str, Any]:
    completed: dict[str, Any] = {
        name: int(required.words[0]) for name, required in required_environment(recipe).items()
    }
    if whole_iteration(recipe):
        as_word = {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": None}
        as_scope = {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}
        completed |= as_word if since(version, "0.18") else as_scope
    return completed


def _finding(spelling: Spelling, version: str) -> Finding:
    refused = bool(spelling.wanted)
    return Finding(
        rule=NO_SUCH_FLAG if refused else NOT_EXPRESSED,
        kind=FindingKind.ERROR if refused else FindingKind.WARNING,
        message=f"Megatron-LM {version} has no flag for {spelling.name}: {spelling.why_not}",
        hint="export for a version that has the flag, or set it as that version has it"
        if refused
        else "it trains with its own value: change the code, or the recipe",
        knobs=(spelling.name,),
        source="flags.csv of the exporter: the parsers of each version",
        binds=MEGATRON_LM,
    )


def _left(field: str, flag: str) -> Finding:
    return _by_command(
        "said-by-command-only",
        field,
        message=f"trainer.command sets {flag}, and the recipe does not set {field}: the command's value stays",
        hint=f"write {field} into the recipe, so that estimates and proposals know of it",
    )


def _not_judged(field: str, words: str) -> Finding:
    return _by_command(
        "value-of-a-fork",
        field,
        message=f"trainer.command has {words}, a value that Megatron-LM does not have: it stays, and is not judged",
        hint=f"estimates take {field} as the recipe has it; keep it in tune.freeze",
    )


def _scheduled(recipe: Recipe, command: Sequence[str]) -> list[Finding]:
    schedule = schedule_of(command)
    if schedule is None:
        return []
    batch = recipe.training.global_batch_size
    return [
        _by_command(
            "batch-schedule",
            "global_batch_size",
            message=f"trainer.command has {SCHEDULE} {schedule!r}: bursts and estimates run a batch of {batch}, its "
            "other batches are not judged",
            hint="check each batch by itself: set global_batch_size to it; keep it in tune.freeze",
        )
    ]


def _by_command(rule: str, field: str, *, message: str, hint: str) -> Finding:
    """Returns a warning that the trainer's command decides a setting instead of the recipe."""
    return Finding(
        rule=rule,
        kind=FindingKind.WARNING,
        message=message,
        hint=hint,
        knobs=(field,),
        source="trainer.command",
        binds=MEGATRON_LM,
    )
