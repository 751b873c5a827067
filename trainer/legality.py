"""What a recipe breaks where it will run: by everyone's rules, or by those of the user's own trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainer.command_line.megatron_bridge import refusals as megatron_bridge
from trainer.command_line.megatron_lm import refusals as megatron_lm
from trainer.command_line.megatron_lm.batch_schedule import SCHEDULE, schedule_of
from trainer.command_line.megatron_lm.words import of_a_fork, unmentioned
from trainer.recipe import Recipe
from trainer.recipe.frameworks import NOT_EXPRESSED
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import RULES, Finding, FindingKind, check
from trainer.recipe.rules.repair import Repair
from trainer.recipe.rules.rule import MEGATRON_LM

Find = Callable[[Recipe], list[Finding]]
_RULES = {rule.id: rule for rule in RULES}

OF_FRAMEWORK: dict[str, Callable[[Recipe, str | None], list[Finding]]] = {
    "megatron-lm": megatron_lm.findings_for,
    "megatron-bridge": megatron_bridge.findings_for,
}


def findings_of(recipe: Recipe) -> list[Finding]:
    """Every finding, errors first. A knob that the trainer cannot be told is an error: it would run without."""
    trainer = recipe.trainer if recipe.burst.engine == "command" else None
    if trainer is None or trainer.kind not in OF_FRAMEWORK:
        return check(recipe)
    found = [_refused(finding) for finding in OF_FRAMEWORK[trainer.kind](recipe, trainer.version)]
    if trainer.kind == "megatron-lm":
        found += [_left(field, flag) for field, flag in unmentioned(trainer.command, recipe)]
        found += [_not_judged(field, words) for field, words in of_a_fork(trainer.command)]
        found += _scheduled(recipe, trainer.command)
    return sorted(found, key=lambda finding: finding.kind is not FindingKind.ERROR)


def errors_by_rules(findings: list[Finding]) -> list[Finding]:
    """The errors that a rule finds; the others are words that a framework does not have."""
    return [finding for finding in findings if finding.kind is FindingKind.ERROR and finding.rule in _RULES]


def nearest_legal(recipe: Recipe, find: Find = findings_of) -> Recipe | None:
    """The recipe without an error, by these findings, that takes the fewest and smallest changes of knobs, none of them
    frozen. None where there is none."""
    changes = Repair(errors=lambda moved: errors_by_rules(find(moved)), rules=_RULES).changes(recipe)
    if changes is None:
        return None
    near = recipe.replace(changes)
    return None if any(finding.kind is FindingKind.ERROR for finding in find(near)) else near


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
    """Returns a warning of what the trainer's command decides instead of the recipe."""
    return Finding(
        rule=rule,
        kind=FindingKind.WARNING,
        message=message,
        hint=hint,
        knobs=(field,),
        source="trainer.command",
        binds=MEGATRON_LM,
    )


def _refused(finding: Finding) -> Finding:
    unsaid = finding.rule == NOT_EXPRESSED and all(name in KNOBS for name in finding.knobs)
    return replace(finding, kind=FindingKind.ERROR) if unsaid else finding
