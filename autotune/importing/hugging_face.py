"""Reads a Hugging Face `config.json`: the model, and nothing else of a training job."""

from __future__ import annotations

from typing import Any

from autotune.importing.found import Found, ImportOptions
from trainer.frameworks.reading import Reading
from trainer.recipe.hugging_face import is_hugging_face, keys_unread, model_fields, parts_left_out


def is_config(data: Any) -> bool:
    return is_hugging_face(data)


def from_config(data: Any, options: ImportOptions) -> Found:
    """Returns the model; training settings are a recipe's defaults, for the user to change."""
    model = model_fields(data, where=options.file)
    note = "it has no training settings: sequence length, batch, precision and layout are a recipe's defaults"
    left = parts_left_out(data)
    parts = (f"left out of the model: {', '.join(left)}: only the language model is imported",) if left else ()
    unread = keys_unread(data)
    odd = (f"not read, no field of the model for it: {', '.join(unread)}",) if unread else ()
    reading = Reading(model=model, knobs={}, notes=(note, *parts, *odd))
    return Found(what=f"a Hugging Face configuration ({data['model_type']})", reading=reading)
