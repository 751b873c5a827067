"""Gives Megatron-LM's own parser the recipes which, by a rule, no check of the release refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.exports.ask import answers, request_of
from benchmarks.exports.checkout import tree_of
from trainer.recipe.rules import RULES
from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.releases import is_among


def unstopped(checkout: Path, version: str) -> Iterator[str]:
    """Yields how many examples of such rules the version's parser accepts, and its errors for those it refuses.

    Leaves out rules of other releases.
    """
    rules = [rule for rule in RULES if rule.effect and is_among(rule.versions, version)]
    with tree_of(checkout, version) as tree:
        found = answers(tree, [request_of(n, recipe_of(rule.breaking), version) for n, rule in enumerate(rules)])
    pairs = ((rule, answer["refused"] or answer["configuration"]) for rule, answer in zip(rules, found, strict=True))
    refused = {rule.id: refusal["message"] for rule, refusal in pairs if refusal}
    yield f"{version}: {len(rules)} rules of what no check stops, {len(rules) - len(refused)} taken by the parser"
    yield from (f"  refused: {rule}: {' '.join(message.split())[:120]}" for rule, message in refused.items())
