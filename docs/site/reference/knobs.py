"""A page for each knob, from knobs.csv, with the rules that name it."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.looks.quantities import knob_value
from docs.site.page import Page, code, facts, table
from trainer.recipe.knobs import KNOBS, Knob
from trainer.recipe.rules import RULES

SECTIONS = {
    "training": "written under `training:`",
    "parallelism": "written under `parallelism:`",
    "knobs": "written under `knobs:`",
}
DEFAULTS = {"megatron": "Megatron's default", "ours": "our default"}
WALLS = ("memory", "communication", "host", "compute")


def pages() -> Iterator[Page]:
    yield Page(path="knobs/index.html", title="Knobs", markdown=_index(), group="Reference")
    for knob in KNOBS.values():
        yield Page(
            path=f"knobs/{knob.name}.html", title=knob.name, markdown=_page(knob), group="Reference", listed=False
        )


def _index() -> str:
    said = (
        f"# Knobs\n\nThe {len(KNOBS)} knobs of a recipe, from `trainer/recipe/knobs.csv`. The tuner moves those that "
        "`tune.freeze` does not name and whose numerics `tune.allow` permits.\n"
    )
    parts = [said]
    for section, where in SECTIONS.items():
        rows = [
            (f"[{knob.name}]({knob.name}.html)", str(knob.domain), code(knob_value(knob.default)), _walls(knob))
            for knob in KNOBS.values()
            if knob.section == section
        ]
        parts.append(f"\n## {section}\n\n{where[0].upper()}{where[1:]}.\n\n")
        parts.append(table(("knob", "values", "default", "walls it acts on"), rows))
    return "".join(parts)


def _page(knob: Knob) -> str:
    rules = [f"- [{rule.id}](../rules/{rule.id}.html) ({rule.kind})" for rule in RULES if knob.name in rule.knobs]
    rows = (
        ("values", str(knob.domain)),
        ("default", f"{code(knob_value(knob.default))}, {DEFAULTS[knob.default_from]}"),
        ("in a recipe", SECTIONS[knob.section]),
        ("Megatron-Core", code(knob.megatron_core or "") + (f", since {knob.since}" if knob.since else "")),
        ("Megatron-LM", code(knob.megatron_lm or "")),
        ("Megatron-Bridge", code(knob.megatron_bridge or "")),
        ("acts on", f"the {knob.acts}; walls: {_walls(knob) or 'none'}"),
        ("tuned in phase", knob.phase),
        ("numerics", knob.numerics),
        ("note", knob.note),
    )
    rule_list = "\n\n## Rules about it\n\n" + "\n".join(rules) if rules else ""
    return f"# {knob.name}\n\n{facts(rows)}{rule_list}\n"


def _walls(knob: Knob) -> str:
    return ", ".join(f"[{wall}](../walls/{wall}.html)" for wall in knob.walls if wall in WALLS)
