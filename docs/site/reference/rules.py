"""A page for each rule, with the content of `check --explain RULE`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.check.document import rule_document
from autotune.check.findings import EFFECTS, FRAMEWORKS, KINDS
from docs.site.page import Page, code, facts, plain, table
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import RULES, Rule
from trainer.values import knob_value


def pages() -> Iterator[Page]:
    yield Page(path="rules/index.html", title="Rules", markdown=_index(), group="Reference")
    for rule in RULES:
        yield Page(path=f"rules/{rule.id}.html", title=rule.id, markdown=_page(rule), group="Reference", listed=False)


def _index() -> str:
    parts = [
        f"# Rules\n\nThe {len(RULES)} rules that `moe-autotune check` checks; `check --explain RULE` prints one of "
        "these pages.\n"
    ]
    for kind, (_, meaning) in KINDS.items():
        of_kind = [rule for rule in RULES if rule.kind.value == kind]
        rows = [(f"[{rule.id}]({rule.id}.html)", plain(rule_document(rule)["because"])) for rule in of_kind]
        parts.append(f"\n## {kind}: {meaning}\n\n" + table(("rule", "message where it is violated"), rows) + "\n")
    return "".join(parts)


def _page(rule: Rule) -> str:
    page = rule_document(rule)
    _, meaning = KINDS[page["kind"]]
    rows = (
        ("kind", f"{page['kind']}: {meaning}"),
        ("what to do", page["hint"]),
        ("knobs", _knobs(page["knobs"]) or "none: it depends on the model or the cluster"),
        ("applies to", _frameworks(rule)),
        ("releases", page["versions"]),
        ("effect", EFFECTS[page["effect"]] if page["effect"] else ""),
        ("source", page["source"]),
        ("compared", "; ".join(page["compared"])),
        ("violates", _example(page["breaking"])),
        ("passes", _example(page["passing"])),
    )
    return f"# {rule.id}\n\n{plain(page['because'])}\n\n{facts((name, plain(text)) for name, text in rows)}\n"


def _knobs(names: tuple[str, ...]) -> str:
    return ", ".join(f"[{name}](../knobs/{name}.html)" if name in KNOBS else name for name in names)


def _frameworks(rule: Rule) -> str:
    return ", ".join(FRAMEWORKS[framework] for framework in rule.binds)


def _example(example: Mapping[str, Mapping[str, Any]]) -> str:
    parts = (
        f"{section}: " + ", ".join(code(f"{name}: {knob_value(value)}") for name, value in values.items())
        for section, values in example.items()
    )
    return "; ".join(parts) or "a recipe with every default"
