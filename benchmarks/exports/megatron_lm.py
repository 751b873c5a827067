"""Checks exports to Megatron-LM with its own parser: both accept a recipe, or `check --for` refuses it as the parser
does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.exports.ask import answers, options, request_of
from benchmarks.exports.checkout import tree_of
from benchmarks.exports.kept import Compared, compared, lost
from benchmarks.exports.recipes import LazyRecipe
from trainer.frameworks.megatron_lm.refusals import NO_SUCH_FLAG, findings_for
from trainer.recipe.rules import FindingKind

VERSIONS = ("0.16.1", "head")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of one export.

    `ours`: rules of `check --for` that refuse it; `theirs`: the error of Megatron's parser, or of the Megatron-Core
    configuration built from the arguments; None if neither refuses.
    """

    asked: LazyRecipe
    ours: tuple[str, ...]
    theirs: str | None
    kept: int = 0
    unkept: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()  # changed by the parser, as check predicts
    lost: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Figures:
    version: str
    verdicts: list[Verdict] = field(default_factory=list)

    def of(self, *, ours: bool, theirs: bool) -> list[Verdict]:
        """Returns the verdicts with these answers of check and of the parser (True: refused)."""
        return [v for v in self.verdicts if bool(v.ours) == ours and (v.theirs is not None) == theirs]

    def lines(self) -> Iterator[str]:
        agreed = self.of(ours=True, theirs=True)
        accepted = self.of(ours=False, theirs=False)
        origins = Counter(v.asked.origin for v in self.verdicts)
        yield f"Megatron-LM {self.version}: {len(self.verdicts)} recipes ({_counts(origins)})"
        yield f"  accepted by Megatron-LM and by check:     {len(accepted)}"
        yield f"  refused by check as Megatron-LM does:     {len(agreed)}"
        for (ours, theirs), count in Counter((_same_reason(v), v.theirs) for v in agreed).most_common():
            yield f"    {count:4}  {ours}: {theirs}"
        yield from _listed("  refused by Megatron-LM, accepted by check: ", self.of(ours=False, theirs=True))
        yield from _listed("  refused by check, accepted by Megatron-LM: ", self.of(ours=True, theirs=False))
        kept, moved = sum(v.kept for v in accepted), Counter(name for v in accepted for name in v.unkept)
        yield f"  knobs and fields kept:                    {kept} of {kept + moved.total()}"
        yield from (f"    {count:4}  {what}" for what, count in moved.most_common())
        announced = Counter(name for v in accepted for name in v.announced)
        yield f"  changed by Megatron-LM, as check reports: {announced.total()}"
        yield from (f"    {count:4}  {what}" for what, count in announced.most_common())
        lost = Counter(name for v in accepted for name in v.lost)
        yield f"  listed as not expressed:                  {lost.total()}"
        yield from (f"    {count:4}  {what}" for what, count in lost.most_common())


def figures(checkout: Path, version: str, recipes: Sequence[LazyRecipe]) -> Figures:
    """Exports every recipe for the version and parses it with that version's parser."""
    with tree_of(checkout, version) as tree:
        known = options(tree)
        found = answers(tree, [request_of(n, each.recipe, version) for n, each in enumerate(recipes)])
    verdicts = [_verdict(each, version, known, answer) for each, answer in zip(recipes, found, strict=True)]
    return Figures(version=version, verdicts=verdicts)


def _verdict(asked: LazyRecipe, version: str, known: dict[str, Any], answer: dict[str, Any]) -> Verdict:
    recipe, findings = asked.recipe, findings_for(asked.recipe, version)
    ours = tuple(found.rule for found in findings if found.kind is FindingKind.ERROR and not found.effect)
    autoset = {knob for found in findings if found.kind is FindingKind.AUTOSET for knob in found.knobs}
    said = answer["refused"] or answer["configuration"]
    if said:
        return Verdict(asked=asked, ours=ours, theirs=f"{said['where']} {_short(said['message'])}")
    pairs = list(compared(recipe, version, known, answer["args"]))
    return Verdict(
        asked=asked,
        ours=ours,
        theirs=None,
        kept=sum(pair.kept for pair in pairs),
        unkept=tuple(_moved(pair) for pair in pairs if not pair.kept and pair.name not in autoset),
        announced=tuple(_moved(pair) for pair in pairs if not pair.kept and pair.name in autoset),
        lost=tuple(f"{each.name}: {each.why_not}" for each in lost(recipe, version)),
    )


def _moved(pair: Compared) -> str:
    return f"{pair.name}: {pair.expected} became {pair.found}"


def _same_reason(verdict: Verdict) -> str:
    """Returns, of several rules, the one that the parser would report: it checks all flags before any value."""
    usage = (verdict.theirs or "").startswith("argparse")
    return next((rule for rule in verdict.ours if (rule == NO_SUCH_FLAG) == usage), verdict.ours[0])


def _listed(label: str, verdicts: list[Verdict]) -> Iterator[str]:
    yield f"{label}{len(verdicts)}"
    reasons = Counter((v.theirs or ", ".join(v.ours)) for v in verdicts)
    for reason, count in reasons.most_common():
        names = [v.asked.recipe.name for v in verdicts if (v.theirs or ", ".join(v.ours)) == reason]
        yield f"    {count:4}  {reason} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"


def _short(message: str) -> str:
    return " ".join(message.split())[:150]


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.items())
