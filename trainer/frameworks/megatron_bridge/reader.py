"""Reads commands of Megatron-Bridge (`--recipe NAME section.key=value …`) and configurations as parts of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainer.errors import refused
from trainer.frameworks.megatron_bridge.read import is_override, preset_of, read_config, read_overrides
from trainer.frameworks.reading import Document, ImportRequest, Reader, Reading
from trainer.recipe.models import presets

SECTIONS = frozenset({"model", "train", "optimizer", "ddp", "dataset"})  # sections of a ConfigContainer
_NOT_KNOWN = (
    "what {base} sets and the line does not is not known here. Bursts leave its knobs alone, but write layout, batch "
    "and precision as the recipe has them: correct those that the line does not name, or import the configuration "
    "that a run of yours dumped"
)
_TEXT_MODEL = (
    "{recipe} trains a vision-language model: {preset} is its text model, and the vision encoder is not counted"
)
SIZES = frozenset({"num_layers", "hidden_size", "num_attention_heads", "vocab_size"})  # fields that every model needs
SEQUENCE = ("--seq_length", "--seq-length")
RECIPE = ("--recipe", "--recipe_name", "--recipe-name")


def starts(argv: Sequence[str]) -> bool:
    overrides = sum(is_override(word) for word in argv)
    named = any(word.partition("=")[0] in RECIPE for word in argv)
    return named or (overrides > 1 and overrides * 2 > len(argv))


def is_config(data: Any) -> bool:
    """Returns true for a ConfigContainer: a mapping with a model and two more of its sections."""
    return isinstance(data, dict) and len(SECTIONS & data.keys()) >= 3 and isinstance(data.get("model"), dict)


def read_command(argv: Sequence[str], request: ImportRequest, stays: frozenset[str]) -> Reading:
    """Reads a Bridge command: its overrides and flags, what every Bridge recipe sets, and the model by its name. What
    else its Bridge recipe sets is not known, and noted."""
    reading = read_overrides(argv)
    recipe = _value_of(argv, RECIPE)
    base = f"the Bridge recipe {recipe}" if recipe else "its Bridge recipe"
    read = _with_model(recipe, reading, request)
    seen = recipe is not None and read.preset is not None and "vl" in recipe.lower().split("_")
    return replace(
        read,
        knobs={**_of_every_recipe(recipe), **_set_by_flags(argv), **reading.knobs},
        notes=(
            _NOT_KNOWN.format(base=base),
            *([_TEXT_MODEL.format(recipe=recipe, preset=read.preset)] if seen else []),
        ),
    )


def _with_model(recipe: str | None, reading: Reading, request: ImportRequest) -> Reading:
    """Adds the preset of `--set model=…`, else the one that the Bridge recipe is named after. Raises BadInputError if
    there is none and the command line does not have the whole model."""
    named = request.given.get("model") or (preset_of(recipe) if recipe else None)
    if named in presets():
        model = {**presets()[named].model_dump(), **reading.model} if reading.model else {}
        return replace(reading, preset=None if model else named, model=model)
    if reading.model.keys() >= SIZES:
        return reading
    raise refused(
        request.file,
        f"it does not say which model: {recipe or 'no --recipe'} matches no preset",
        f"--set model=NAME, one of {', '.join(list(presets())[:6])}, …",
    )


def read_configuration(data: Any, request: ImportRequest) -> Reading:
    """Reads a whole configuration, which has every knob but not the command."""
    note = (
        "a configuration has no command: bursts run our own model (engine megatron); import the launch line for yours"
    )
    return replace(read_config(data), notes=(note,))


def _value_of(argv: Sequence[str], flags: tuple[str, ...]) -> str | None:
    for index, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in flags:
            return value if equals else argv[index + 1] if index + 1 < len(argv) else None
    return None


def _of_every_recipe(recipe: str | None) -> dict[str, bool]:
    """Returns the knobs that all MoE recipes of Bridge set. Source: megatron/bridge/models/*_provider.py 0.3.1."""
    named = preset_of(recipe) if recipe else None
    return {"moe_grouped_gemm": True} if named and presets()[named].num_moe_experts else {}


def _set_by_flags(argv: Sequence[str]) -> dict[str, int]:
    """Returns the values of run_recipe.py's own flags; overrides take precedence over them."""
    value = _value_of(argv, SEQUENCE)
    return {"seq_length": int(value)} if value and value.isdigit() else {}


READER = Reader(
    order=0,
    starts=starts,
    read_command=read_command,
    configuration=Document(fits=is_config, read=read_configuration),
    keeps_defaults=True,
    readable="a Megatron-Bridge configuration",
    left_by_runs="the configuration that Megatron-Bridge dumps",
    unused=frozenset(
        (
            *("checkpoint.save", "checkpoint.load", "logger.tensorboard_dir", "logger.wandb_project"),
            *("logger.wandb_exp_name", "logger.wandb_save_dir", "logger.wandb_entity"),
        )
    ),
)
