"""From a file of any kind to a recipe: what kind it is, who reads it, and whether the recipe means the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.importing import arguments_file, bridge, hugging_face, megatron_lm, recorded, scripts, secrets
from autotune.importing.files import text_of
from autotune.importing.found import Asked, Found, Started, check_given
from autotune.importing.here import vocabulary_here
from autotune.importing.recipe import Imported, built, with_changes
from trainer.command_line.megatron_lm.agreement import differences
from trainer.command_line.megatron_lm.log import has_arguments
from trainer.command_line.megatron_lm.words import with_recipe
from trainer.errors import refused


def imported(asked: Asked) -> Imported:
    """The recipe of a file. BadInputError says what is missing or not understood."""
    text = text_of(Path(asked.file), known=KNOWN)
    try:
        return _made(*_found(text, asked), asked)
    except RecursionError:
        raise refused(asked.file, "it is nested too deeply to be read", "flatten it") from None
    except arguments_file.TooMuchError as error:
        raise refused(asked.file, str(error), "import its arguments as a file") from None


def imported_command(started: Started, asked: Asked, what: str) -> Imported:
    """The recipe of a command that is known already."""
    return _made(*_command(started, asked, what), asked)


def _made(found: Found, started: Started | None, asked: Asked) -> Imported:
    first = built(found, asked)
    made = first if started is None else _agreed(first, started, asked)
    return replace(made, found=secrets.told(made.found))


def _found(text: str, asked: Asked) -> tuple[Found, Started | None]:
    """What the file says, and the Megatron-LM command it says it with, if it does."""
    data = None if has_arguments(text) else _mapping(text, asked)
    if data is not None or has_arguments(text) or _only_arguments(text):
        check_given(asked, text)  # a script's also in what it reads
    if has_arguments(text):
        return megatron_lm.from_log(text, asked), None
    if data is not None:
        for fits, read in DOCUMENTS:
            if fits(data):
                return read(data, asked), None
    if data is not None and recorded.is_recorded(data):
        return _recorded(data, asked)
    if data is not None and arguments_file.is_arguments(data):
        texts = data if text.lstrip().startswith("{") else arguments_file.read_texts(text)
        return _command(arguments_file.from_yaml(texts, asked), asked, "a YAML file of Megatron-LM's arguments")
    if data is not None:
        raise refused(asked.file, "a mapping of an unknown kind", KNOWN)
    if _only_arguments(text):
        return _command(arguments_file.from_text(text, asked), asked, "a file of Megatron-LM's arguments")
    if asked.file.endswith(".py"):
        raise refused(asked.file, "it is a Python program, which is not read", OF_A_RUN)
    return _command(scripts.started(text, asked), asked, "a launch script")


def _recorded(data: dict[str, Any], asked: Asked) -> tuple[Found, Started | None]:
    """A command that was recorded, or the arguments that a trainer had settled on inside a real start."""
    started = recorded.started(data, asked)
    values = data.get("inside", {}).get("arguments")
    if values and not (megatron_lm.is_megatron_lm(started) or bridge.is_bridge(started)):
        return megatron_lm.from_values(values, asked), None
    return _command(started, asked, "a recorded start")


def _command(started: Started, asked: Asked, what: str) -> tuple[Found, Started | None]:
    started = secrets.without(started)
    if bridge.is_bridge(started):
        return bridge.from_command(started, asked, what=f"{what} of Megatron-Bridge"), None
    if not megatron_lm.is_megatron_lm(started):
        program = " ".join(started.program)
        raise refused(
            asked.file,
            f"{program} takes no arguments that Megatron-LM or Megatron-Bridge know",
            f"{OF_A_RUN}, or write a recipe by hand with trainer.kind: custom",
        )
    of_whom = what if "Megatron-LM" in what else f"{what} of Megatron-LM"
    return _with_vocabulary(megatron_lm.from_command(started, asked, what=of_whom), started, asked), started


def _with_vocabulary(found: Found, started: Started, asked: Asked) -> Found:
    """The size of the vocabulary from the tokenizer that the command names, where that is on this machine."""
    if isinstance(found.model, str) or found.model.get("vocab_size") or "vocab_size" in asked.given:
        return found
    read = vocabulary_here(started.argv, asked.cwd or str(Path(asked.file).parent))
    if read is None:
        return found
    note = f"{read[0]} tokens, by {read[1]}"
    return replace(found, model={**found.model, "vocab_size": read[0]}, notes=(*found.notes, note))


def _agreed(first: Imported, started: Started, asked: Asked) -> Imported:
    """The recipe whose words, beside what stayed, mean what the command meant: what would not come back stays."""
    world = megatron_lm.world_size(started.sizes, asked)
    lost = _lost(first, started, world)
    if not lost:
        return first
    again = megatron_lm.from_command(started, asked, what=first.found.what, stays=frozenset(lost))
    found = _with_vocabulary(again, started, asked)
    second = built(found, asked)
    return with_changes(second, _lost(second, started, world))


def _lost(imported: Imported, started: Started, world: int | None) -> dict[str, tuple[Any, Any]]:
    stayed = imported.found.command[len(started.program) :]
    return dict(differences(started.argv, with_recipe(stayed, imported.recipe), world_size=world))


def _mapping(text: str, asked: Asked) -> dict[str, Any] | None:
    """JSON or YAML that is a mapping; None for a script, which begins otherwise."""
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError:
            return None
        return data if isinstance(data, dict) else None
    if text.startswith("#!") or not re.search(r"^[\w'\"-]+:(\s|$)", text, re.MULTILINE):
        return None
    if len(text) > MOST_YAML:
        raise refused(asked.file, "it is too large for a configuration", "name the file of one training job")
    data = arguments_file.read_yaml(text)
    return data if isinstance(data, dict) else None


def _only_arguments(text: str) -> bool:
    """Whether the text is flags and nothing else: its first word is one."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and lines[0].lstrip().startswith("--")


MOST_YAML = 2**22  # letters
DOCUMENTS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Asked], Found]], ...] = (
    (hugging_face.is_config, hugging_face.from_config),
    (bridge.is_config, bridge.from_config),
)
OF_A_RUN = (
    "import what a run of it left: the log of rank 0 with Megatron-LM's arguments, or the configuration that "
    "Megatron-Bridge dumps; or the torchrun or srun line that it starts"
)
KNOWN = (
    "it may be a bash script, a list of Megatron-LM's arguments, its log, a Megatron-Bridge configuration, "
    "or a Hugging Face config.json"
)
