"""Rules that make a recipe legal, as rows grouped by subject, and their findings."""

from trainer.recipe.rules.check import RULES, check, nearest_valid
from trainer.recipe.rules.rule import Finding, FindingKind, Rule

__all__ = ["RULES", "Finding", "FindingKind", "Rule", "check", "nearest_valid"]
