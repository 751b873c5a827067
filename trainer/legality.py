"""What a recipe breaks where it will run: by everyone's rules, or by those of the user's own trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainer.command_line.megatron_bridge import refusals as megatron_bridge
from trainer.command_line.megatron_lm import refusals as megatron_lm
from trainer.command_line.megatron_lm.words import unmentioned
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.launchers import NOT_EXPRESSED
from trainer.recipe.rules import Finding, FindingKind, check
from trainer.recipe.rules.rule import MEGATRON_LM

OF_LAUNCHER: dict[str, Callable[[Recipe, str | None], list[Finding]]] = {
    "megatron-lm": megatron_lm.findings_for,
    "megatron-bridge": megatron_bridge.findings_for,
}


def findings_of(recipe: Recipe) -> list[Finding]:
    """Every finding, errors first. A knob that the trainer cannot be told is an error: it would run without."""
    trainer = recipe.trainer if recipe.burst.engine == "command" else None
    if trainer is None or trainer.kind not in OF_LAUNCHER:
        return check(recipe)
    found = [_refused(finding) for finding in OF_LAUNCHER[trainer.kind](recipe, trainer.version)]
    if trainer.kind == "megatron-lm":
        found += [_left(field, flag) for field, flag in unmentioned(trainer.command, recipe)]
    return sorted(found, key=lambda finding: finding.kind is not FindingKind.ERROR)


def _left(field: str, flag: str) -> Finding:
    return Finding(
        rule="said-by-command-only",
        kind=FindingKind.WARNING,
        message=f"trainer.command says {flag}, and the recipe does not mention {field}: it stays as the command has it",
        hint=f"write {field} into the recipe, so that estimates and proposals know of it",
        knobs=(field,),
        source="trainer.command",
        binds=MEGATRON_LM,
    )


def _refused(finding: Finding) -> Finding:
    unsaid = finding.rule == NOT_EXPRESSED and all(name in KNOBS for name in finding.knobs)
    return replace(finding, kind=FindingKind.ERROR) if unsaid else finding
