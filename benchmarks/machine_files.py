"""Writes docs/machines.md: every key of a machine file, the packaged machines, and the knobs that do nothing on them.

python -m benchmarks.machine_files > docs/machines.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from pydantic.fields import FieldInfo

from autotune.twin.translation import translation
from trainer.recipe.architecture import Section
from trainer.recipe.load_machine import load_machine, packaged_machines
from trainer.recipe.machine import Machine
from trainer.recipe.machine_file import Learned, LearnedFactors
from trainer.recipe.tables import read_table

HEAD = """# Machine files

A recipe with `burst: {engine: simulated}` runs on a simulated cluster: a simulation of events, compared with published
runs (`python -m benchmarks.simulation_accuracy`), that shares no formula with `estimate` and `plan`. A machine file
says how that cluster differs from the tables; `burst: {engine: simulated, machine: NAME or FILE}` names a packaged one
or a YAML file, relative to the recipe. What the file says becomes part of the recipe, of its digest and of the study.

```yaml
name: our-cluster
about: links between nodes give 60 % of their rate, and node 5 is 8 % slower
links: {network: 0.6}
stragglers: [{node: 5, compute: 1.08}]
```

Factors multiply what the tables say: 1 is "as published", 0.5 of a rate is half as fast, 2 of a time is twice as long.
What is absent has its default. This page is made by `python -m benchmarks.machine_files`.

A file that [`twin`](twin.md) wrote has a second section, `estimate`: what was learned of the cluster, for the closed
forms of `estimate` and `plan`. A simulation does not read it, and it is not part of a recipe or its digest.
"""
TRANSLATION = """## From what was learned to the keys

`twin` translates factors of the closed forms into keys of the simulation by this table. d is the difference between the
factor learned of the cluster and the one learned, in the same way, of the same recipes on a simulated machine: `power`
multiplies the key by exp(times · d), `add` adds times · (exp(d) − 1), `odds` multiplies the odds of the simulation's
share by exp(times · d). Where a key has several rows, they apply one after the other.
"""


def page() -> str:
    parts = [HEAD, *_keys(Machine, ""), *_learned(), *_translated(), *_packaged(), *_inert()]
    return "\n".join(parts) + "\n"


def _keys(section: type[Section], name: str) -> Iterator[str]:
    """Yields a table of a section's own keys, then those of its sections."""
    inner = {key: kind for key, field in section.model_fields.items() if (kind := _section(field))}
    plain = {key: field for key, field in section.model_fields.items() if key not in inner}
    yield f"## {f'`{name}`' if name else 'Keys'}\n"
    if name:
        yield f"{(section.__doc__ or '').strip()}\n"
    yield "| key | default | what it is |"
    yield "|---|---|---|"
    for key, field in plain.items():
        yield f"| `{key}` | {_default(field)} | {field.description} |"
    for key in inner:
        if not name:
            listed = " (a list)" if key in ("stragglers", "faults") else ""
            yield f"| `{key}` | | see below{listed} |"
    yield ""
    for key, kind in inner.items():
        yield from _keys(kind, key)


def _learned() -> Iterator[str]:
    yield "## `estimate`\n"
    yield f"{(LearnedFactors.__doc__ or '').strip()}\n"
    yield "| key | default | what it is |"
    yield "|---|---|---|"
    for key, field in LearnedFactors.model_fields.items():
        yield f"| `{key}` | {_default(field)} | {field.description} |"
    figures = "; ".join(f"`{key}`, {field.description}" for key, field in Learned.model_fields.items())
    yield f"\nEach factor has {figures}. Names are those of a study's surrogate.\n"


def _translated() -> Iterator[str]:
    yield TRANSLATION
    yield "| key | factor | how | times | why |"
    yield "|---|---|---|---|---|"
    for row in translation():
        yield f"| `{row.key}` | {row.factor} | {row.how} | {row.times:g} | {row.why} |"
    yield ""


def _section(field: FieldInfo) -> type[Section] | None:
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "" if field.default in (None, "", (), {}) else f"{field.default}"


def _packaged() -> Iterator[str]:
    yield "## Packaged machines\n"
    yield "| name | how it differs | keys |"
    yield "|---|---|---|"
    for name in packaged_machines():
        machine = load_machine(name)
        said = machine.model_dump(exclude_defaults=True, exclude={"name", "about"})
        yield f"| `{name}` | {machine.about} | {', '.join(f'`{key}`' for key in said)} |"
    yield ""


def _inert() -> Iterator[str]:
    yield "## Knobs that do nothing on a simulated cluster\n"
    yield "Every other knob moves the step or its memory.\n"
    yield "| knob | why |"
    yield "|---|---|"
    for row in read_table("inert.csv", package="trainer.engines.simulated"):
        yield f"| `{row['knob']}` | {row['why']} |"


if __name__ == "__main__":
    print(page(), end="")
