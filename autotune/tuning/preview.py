"""What a tuning run would begin with, without running anything: the recipe, its findings, its memory, first
ideas."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from autotune.estimate.memory import memory_document, show_memory
from autotune.looks.quantities import changes_text, gib
from autotune.tuning.loop import base_proposal
from autotune.tuning.study import DEFAULT_SEED
from policies.advisers import policy_for
from policies.phases import PHASES
from policies.trial import Proposal, Status, Trial
from trainer.burst import Failure, FailureKind, Outcome
from trainer.recipe import Recipe
from trainer.recipe.rules import check


def preview(recipe: Recipe, *, seed: int | None) -> dict[str, Any]:
    """Prints it for people; the same as a document for programs."""
    findings = check(recipe)
    memory = memory_document(recipe)
    ideas = first_proposals(recipe, memory, DEFAULT_SEED if seed is None else seed)
    console = Console()
    console.print(recipe.to_yaml(resolved=True), markup=False, highlight=False)
    for finding in findings:
        console.print(f"{finding.kind}: {finding.message} → {finding.hint}", markup=False, highlight=False)
    show_memory(memory)
    for proposal in ideas:
        changes = changes_text(recipe.diff(proposal.recipe))
        said = f"[{proposal.phase}] {proposal.fix}: {changes}\n  why: {proposal.because}"
        console.print(said, markup=False, highlight=False)
    return {
        "schema": 1,
        "recipe_resolved": recipe.to_yaml(resolved=True),
        "findings": findings,
        "memory": memory,
        "proposals": [
            {
                "phase": proposal.phase,
                "fix": proposal.fix,
                "because": proposal.because,
                "changes": recipe.diff(proposal.recipe),
            }
            for proposal in ideas
        ],
    }


def first_proposals(recipe: Recipe, memory: dict[str, Any], seed: int) -> list[Proposal]:
    """What each phase would try first if the base recipe did as the estimate says. No trace, so no wall
    yet."""
    base = _expected(recipe, memory)
    policy = policy_for(recipe, seed)
    proposals = (policy.propose(base, phase, [base]) for phase in PHASES)
    return [proposal for proposal in proposals if proposal is not None]


def _expected(recipe: Recipe, memory: dict[str, Any]) -> Trial:
    """The base recipe's trial as estimated: out of memory when the estimate is over the limit."""
    fits = memory["may_fit"]
    failure = Failure(kind=FailureKind.OOM, evidence=f"estimated peak {gib(memory['peak_gib'])} is over the limit")
    return Trial(
        number=0,
        proposal=base_proposal(recipe),
        changes={},
        bursts=(),
        outcomes=(Outcome(failure=None if fits else failure, limit_gib=recipe.memory_limit_gib),),
        status=Status.OK if fits else Status.OOM,
    )
