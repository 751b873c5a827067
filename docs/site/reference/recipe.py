"""The keys of a recipe, from the types that parse it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from autotune.looks.quantities import knob_value
from autotune.schemas.remarks import remarks_of
from docs.site.markdown import anchor
from docs.site.page import Page, code, table
from docs.site.reference.types import hints_of, type_words
from trainer.recipe import Recipe, packaged_examples
from trainer.recipe.architecture import Architecture
from trainer.recipe.launching import HostsSettings, SlurmSettings
from trainer.recipe.sections import BurstSettings, Cluster, Parallelism, TrainerSettings, Training, TuneSettings

# (key, type, description)
SECTIONS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("recipe", Recipe, "The whole file. Only `model` and `cluster` are required; everything else has a default."),
    ("cluster", Cluster, "The GPUs."),
    ("training", Training, "Batch, sequence and precision."),
    ("parallelism", Parallelism, "The layout; `tp`, `pp`, `cp`, `ep`, `etp` and `vpp` are accepted too."),
    ("burst", BurstSettings, "How a recipe is run to be measured."),
    ("burst.launcher.slurm", SlurmSettings, "Settings of launcher slurm."),
    ("burst.launcher", HostsSettings, "Launcher hosts, over ssh: the hosts and its settings side by side."),
    ("trainer", TrainerSettings, "Your own trainer, of `burst.engine: command`."),
    ("tune", TuneSettings, "What the tuner may change, and what it optimizes."),
    ("model", Architecture, "Megatron-Core's own fields, where `model` is neither a preset nor a `config.json`."),
)

# rows that the types alone do not give
SPECIAL: dict[tuple[type[BaseModel], str], tuple[str, str, str, str]] = {
    (Recipe, "name"): (code("name"), "text", "the file's name", "of the study and of its folder"),
    (Recipe, "knobs"): (code("knobs"), "[knobs](knobs/index.html) by name", "", "what is not at its default"),
}


def pages() -> Iterator[Page]:
    examples = ", ".join(code(name) for name in packaged_examples())
    parts = [f"# A recipe\n\nKnobs have [pages of their own](knobs/index.html). Packaged examples: {examples}.\n"]
    for key, kind, said in SECTIONS:
        parts.append(f"\n## {key}\n\n{said}\n\n{_keys(kind)}\n")
    yield Page(path="recipe.html", title="A recipe", markdown="".join(parts), group="Reference")


def _keys(kind: type[BaseModel]) -> str:
    hints, remarks = hints_of(kind), remarks_of(kind)
    rows = [
        SPECIAL.get((kind, name), (code(name), _type_of(hints[name]), _default(field), remarks.get(name, "")))
        for name, field in kind.model_fields.items()
    ]
    return table(("key", "takes", "default", "what"), rows)


def _type_of(hint: Any) -> str:
    """Returns the type of a field in words, with links for sections of the recipe."""
    words = type_words(hint)
    for key, kind, _ in SECTIONS:
        words = re.sub(rf"\b{kind.__name__}\b", f"[{key}](#{anchor(key)})", words)
    return words


def _default(field: Any) -> str:
    if field.is_required():
        return "needed"
    if field.default is PydanticUndefined or isinstance(field.default, BaseModel):
        return ""
    return code(knob_value(field.default))
