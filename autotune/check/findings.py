"""Terminal output of `check`: violated rules by kind with what to do, the nearest legal recipe, a rule's own page.

Errors come first, then deviations from what the recipe asks for, then warnings. Everything fits 80 columns and keeps
its indent where it wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from autotune.looks.quantities import changes_text, counted
from autotune.looks.wrapping import plain_console
from trainer.recipe.rules.releases import EVERY_RELEASE_WORD
from trainer.values import knob_value

if TYPE_CHECKING:
    from autotune.check.document import RulePage
    from autotune.estimate.memory import Memory
    from policies.trial import Changes
    from trainer.recipe.rules import Finding

# kind → (colour, meaning)
KINDS: dict[str, tuple[str, str]] = {
    "error": ("bold red", "the recipe does not run, or trains wrongly"),
    "fallback": ("magenta", "what runs is not what the recipe asks for"),
    "autoset": ("cyan", "Megatron or a framework changes these values on its own"),
    "warning": ("yellow", "it runs, but probably not as intended"),
}
FRAMEWORKS = {
    "core": "Megatron-Core, with every framework",
    "megatron-lm": "Megatron-LM's command line",
    "megatron-bridge": "Megatron-Bridge",
    "moe-autotune": "this program",
}
# effect of a violation that no check stops → its words
EFFECTS: dict[str, str] = {
    "fails": "no check stops it: it hangs or crashes later",
    "trains-wrongly": "nothing stops it: it trains wrongly",
    "may-train-wrongly": "nothing stops it: it may train wrongly",
    "inaccurate": "nothing stops it: it trains, but a reported figure is wrong",
}


def show_findings(findings: Sequence[Finding], memory: Memory | None = None) -> None:
    """Prints every violated rule with what to do, by kind, then the predicted memory if it is known."""
    console = plain_console()
    for kind, (style, meaning) in KINDS.items():
        of_kind = [finding for finding in findings if finding.kind.value == kind]
        if of_kind:
            console.print(Text.assemble((kind, style), f": {meaning}"))
            for finding in of_kind:
                _print_finding(console, finding, style)
            console.print()
    errors = sum(finding.kind.value == "error" for finding in findings)
    counts = f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'remark')}"
    console.print(counts if findings else "no rule is violated", style="bold")
    if memory is not None:
        from autotune.estimate.memory import show_memory

        show_memory(memory)


def show_nearest(changes: Changes | None) -> None:
    """Prints the changes to the nearest legal recipe, or (None) that no change of knobs makes the recipe legal."""
    said = (
        "no change of knobs that are not frozen makes this recipe legal: change tune.freeze, the model or the cluster"
        if changes is None
        else f"nearest legal recipe: {changes_text(changes)}"
    )
    show_wrapped(said)


def show_wrapped(text: str) -> None:
    """Prints a paragraph in the width of the terminal."""
    console = plain_console()
    for line in Text(text).wrap(console, console.width):
        line.rstrip()
        console.print(line)


def show_rule(page: RulePage) -> None:
    """Prints a rule's page: message, reason, source and versions, and an example of each outcome."""
    console = plain_console()
    style, meaning = KINDS[page["kind"]]
    console.print(Text.assemble((page["kind"], style), " ", (page["id"], "bold"), f": {meaning}\n"))
    rows = (
        ("message", page["because"]),
        ("what to do", page["hint"]),
        ("knobs", ", ".join(page["knobs"]) or "none: it depends on the model or the cluster"),
        ("applies to", ", ".join(FRAMEWORKS[framework] for framework in page["binds"])),
        ("releases", page["versions"]),
        ("effect", EFFECTS[page["effect"]] if page["effect"] else ""),
        ("source", page["source"]),
        ("compared", "; ".join(page["compared"])),
        ("violates", _written(page["breaking"])),
        ("passes", _written(page["passing"])),
    )
    for name, said in rows:
        if said:
            _indented(console, 12, Text(said), label=name)


def show_rules(pages: Sequence[RulePage]) -> None:
    """Prints every rule's id and its message for its violating example, by kind."""
    console = plain_console()
    for kind, (style, meaning) in KINDS.items():
        of_kind = [page for page in pages if page["kind"] == kind]
        console.print(Text.assemble((kind, style), f": {meaning}"))
        for page in of_kind:
            _indented(console, 2, Text.assemble((page["id"], style), f": {page['because']}"))
        console.print()
    console.print(f"{counted(len(pages), 'rule')}; check --explain RULE has the details")


def _print_finding(console: Console, finding: Finding, style: str) -> None:
    _indented(console, 2, Text.assemble((finding.rule, style), f": {finding.message}"))
    missing = {knob: value for knob, value in finding.suggestion.items() if knob not in finding.hint}
    nearest = ", ".join(f"{knob}: {knob_value(value)}" for knob, value in missing.items())
    _indented(console, 4, Text(f"→ {finding.hint}" + (f" (nearest: {nearest})" if nearest else "")))
    origin = [*(framework.value for framework in finding.binds if framework.value != "core")]
    origin += [finding.versions] if finding.versions != EVERY_RELEASE_WORD else []
    origin += [EFFECTS[finding.effect]] if finding.effect else []
    _indented(console, 4, Text(" · ".join([*origin, finding.source]), style="dim"))


def _indented(console: Console, columns: int, text: Text, *, label: str = "") -> None:
    """Prints the text with an indent on every line, and a label before the first."""
    for number, line in enumerate(text.wrap(console, max(20, console.width - columns))):
        line.rstrip()
        console.print(Text.assemble((label if number == 0 else "").ljust(columns), line))


def _written(example: dict[str, Any]) -> str:
    """Returns `model: a 1, b 2; knobs: c true`."""
    parts = (
        f"{section}: " + ", ".join(f"{name} {knob_value(value)}" for name, value in values.items())
        for section, values in example.items()
    )
    return "; ".join(parts) or "a recipe with every default"
