"""A command of Megatron-Bridge (`--recipe NAME section.key=value …`) or a ConfigContainer, as parts of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.importing.found import Asked, Found, Kept, Started
from trainer.command_line.launchers import Sizes
from trainer.command_line.megatron_bridge.read import (
    OVERRIDE,
    Reading,
    is_override,
    preset_of,
    read_config,
    read_overrides,
)
from trainer.errors import refused
from trainer.recipe.models import presets

SECTIONS = frozenset({"model", "train", "optimizer", "ddp", "dataset"})  # of a ConfigContainer
_NOT_KNOWN = (
    "what {base} sets and the line does not is not known here. Bursts leave its knobs alone, but write layout, batch "
    "and precision as the recipe has them: correct those that the line does not name, or import the configuration "
    "that a run of yours dumped"
)
SIZES = frozenset({"num_layers", "hidden_size", "num_attention_heads", "vocab_size"})  # without which there is no model
SEQUENCE = ("--seq_length", "--seq-length")
RECIPE = ("--recipe", "--recipe_name", "--recipe-name")


def is_bridge(started: Started) -> bool:
    overrides = sum(is_override(word) for word in started.argv)
    return any(word.partition("=")[0] in RECIPE for word in started.argv) or (
        overrides > 1 and overrides * 2 > len(started.argv)
    )


def is_config(data: Any) -> bool:
    """Whether a document is a ConfigContainer: its sections, and the targets that they are made of."""
    return isinstance(data, dict) and len(SECTIONS & data.keys()) >= 3 and isinstance(data.get("model"), dict)


def from_command(started: Started, asked: Asked, *, what: str) -> Found:
    """What the line says. What its Bridge recipe says beside is not in the file."""
    reading = read_overrides(started.argv)
    recipe = _value_of(started.argv, RECIPE)
    return Found(
        what=what,
        model=_model(recipe, reading, asked),
        knobs={**_of_every_recipe(recipe), **_said_by_flags(started.argv), **reading.knobs},
        kind="megatron-bridge",
        command=(*started.program, *reading.rest),
        passed=_passed(reading.rest),
        kept=_kept(reading),
        env=started.env,
        sizes=started.sizes,
        launchers=started.launchers,
        headers=started.headers,
        container=started.container,
        setup=started.setup,
        expand=started.expand,
        problems=started.problems,
        notes=(
            *started.notes,
            _NOT_KNOWN.format(base=f"the Bridge recipe {recipe}" if recipe else "its Bridge recipe"),
        ),
    )


def _model(recipe: str | None, reading: Reading, asked: Asked) -> str | Mapping[str, Any]:
    """The preset that the Bridge recipe is named after with the line's own fields, or the line's where it says all."""
    named = asked.given.get("model") or (preset_of(recipe) if recipe else None)
    if named in presets():
        return {**presets()[named].model_dump(), **reading.model} if reading.model else named
    if reading.model.keys() >= SIZES:
        return reading.model
    raise refused(
        asked.file,
        f"it does not say which model: {recipe or 'no --recipe'} matches no preset",
        f"--set model=NAME, one of {', '.join(list(presets())[:6])}, …",
    )


def from_config(data: Any, asked: Asked) -> Found:
    """A whole configuration: every knob is in it, its command is not."""
    reading = read_config(data)
    model = {**reading.model}
    return Found(
        what="a configuration of Megatron-Bridge",
        model=model,
        knobs=reading.knobs,
        kept=_kept(reading),
        sizes=Sizes(),
        notes=(
            "a configuration has no command: bursts run our own model (engine megatron); import the launch line "
            "for yours",
        ),
    )


def _value_of(argv: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    for index, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in flags:
            return value if equals else argv[index + 1] if index + 1 < len(argv) else None
    return None


def _of_every_recipe(recipe: str | None) -> dict[str, bool]:
    """What all Bridge recipes of a mixture of experts set. Source: megatron/bridge/models/*_provider.py 0.3.1."""
    named = preset_of(recipe) if recipe else None
    return {"moe_grouped_gemm": True} if named and presets()[named].num_moe_experts else {}


def _said_by_flags(argv: tuple[str, ...]) -> dict[str, int]:
    """Of run_recipe.py's own flags, over which overrides are laid."""
    value = _value_of(argv, SEQUENCE)
    return {"seq_length": int(value)} if value and value.isdigit() else {}


def _passed(rest: tuple[str, ...]) -> tuple[str, ...]:
    matches = ((OVERRIDE.fullmatch(word), word) for word in rest)
    names = (match[1] if match else word.partition("=")[0] for match, word in matches if match or word.startswith("-"))
    return tuple(dict.fromkeys(names))


def _kept(reading: Reading) -> tuple[Kept, ...]:
    return tuple(Kept(words=path, why=why) for path, why in reading.unread.items())
