"""Checks a recipe that is applied over a Bridge recipe: Bridge's rules, and values that no override can set."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.frameworks.megatron_bridge.overrides import NotExpressed, not_expressed
from trainer.frameworks.megatron_bridge.read import packing_of
from trainer.frameworks.megatron_bridge.versions import GRAPH_MODULES, core_of, version_of
from trainer.frameworks.packing import packed_findings
from trainer.recipe import Recipe
from trainer.recipe.frameworks import NOT_EXPRESSED, check_for
from trainer.recipe.identity import effective
from trainer.recipe.rules import Finding, FindingKind
from trainer.recipe.rules.rule import BRIDGE, FrameworkName


def findings_for(recipe: Recipe, version: str | None = None) -> list[Finding]:
    """Returns the findings, errors first: violated rules, and values that cannot be set.

    Rules see the recipe as it is exported, with graphs of the whole iteration spelled for the version. Raises
    BadInputError for an unknown version.
    """
    known = version_of(version)
    whole = effective(recipe, "cuda_graph_impl") == "full_iteration"
    as_scope = {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}
    exported = recipe.replace(as_scope) if whole and known < GRAPH_MODULES else recipe
    found = check_for(exported, FrameworkName.MEGATRON_BRIDGE, core_of(known))
    named = ".".join(map(str, known))
    lost = [_finding(each, named) for each in not_expressed(recipe, known)]
    return sorted([*found, *lost], key=lambda finding: finding.kind is not FindingKind.ERROR)


def refused(recipe: Recipe, version: str | None = None) -> list[Finding]:
    """Returns the errors among the findings: each keeps the job from starting, or from training as intended."""
    return [finding for finding in findings_for(recipe, version) if finding.kind is FindingKind.ERROR]


def command_findings(command: Sequence[str], recipe: Recipe) -> list[Finding]:
    """Returns a warning if the user's command packs sequences and the recipe has CUDA graphs."""
    return packed_findings(packing_of(command), recipe, FrameworkName.MEGATRON_BRIDGE)


def _finding(each: NotExpressed, version: str) -> Finding:
    return Finding(
        rule=NOT_EXPRESSED,
        kind=FindingKind.WARNING,
        message=f"Megatron-Bridge {version} has no setting for {each.what}: {each.why}",
        hint="it trains with the value of the Bridge recipe: set it there, or change the recipe",
        knobs=(each.what,),
        source="src/megatron/bridge/training/config.py of each release",
        binds=BRIDGE,
    )
