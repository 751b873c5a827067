"""Rules that make a recipe legal, as rows grouped by subject, and their findings."""

from trainer.recipe.rules.check import RULES, check, check_moved, nearest_valid
from trainer.recipe.rules.rule import Finding, FindingKind, Rule

__all__ = ["RULES", "Finding", "FindingKind", "Rule", "check", "check_moved", "nearest_valid"]
