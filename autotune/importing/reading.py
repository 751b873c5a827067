"""Imports a file of any kind: recognizes the kind, has it read, and checks that the recipe means the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.importing import arguments_file, hugging_face, recorded, scripts, secrets
from autotune.importing.files import text_of
from autotune.importing.found import Found, ImportOptions, Started, check_given, world_size
from autotune.importing.here import vocabulary_here
from autotune.importing.hints import hint_for_program, known_files
from autotune.importing.recipe import Imported, built, with_changes
from trainer.errors import BadInputError, Problem, refused
from trainer.frameworks import Framework
from trainer.frameworks.reading import Difference, ImportRequest, Reader, Reading
from trainer.frameworks.registry import readers


def imported(options: ImportOptions) -> Imported:
    """Returns the recipe of a file. Raises BadInputError for what is missing or not understood."""
    text = text_of(Path(options.file), known=known_files())
    try:
        return _made(_found(text, options), options)
    except RecursionError:
        raise refused(options.file, "it is nested too deeply to be read", "flatten it") from None
    except arguments_file.TooMuchError as error:
        raise refused(options.file, str(error), "import its arguments as a file") from None


def imported_command(started: Started, options: ImportOptions, what: str) -> Imported:
    """Returns the recipe of a command that is already known."""
    return _made(_command(started, options, what), options)


def _made(found: Found, options: ImportOptions) -> Imported:
    made = _agreed(built(found, options), options)
    return replace(made, found=secrets.without_secrets(made.found))


def _found(text: str, options: ImportOptions) -> Found:
    """Returns the training job that the file describes."""
    logs = [(framework, reader.log) for framework, reader in readers() if reader.log and reader.log.fits(text)]
    data = None if logs else _mapping(text, options)
    if data is not None or logs or _only_arguments(text):
        check_given(options, text)  # for a script, `scripts.started` also checks the files that it reads
    for framework, log in logs:
        return _of_document("a log", framework, log.read(text, _request(options)), options)
    if data is not None:
        return _of_mapping(data, text, options)
    if _only_arguments(text):
        return _arguments(arguments_file.from_text(text, options), options, "a file")
    if options.file.endswith(".py"):
        raise refused(options.file, "it is a Python program, which is not read", hint_for_program())
    return _command(scripts.started(text, options), options, "a launch script")


def _of_mapping(data: dict[str, Any], text: str, options: ImportOptions) -> Found:
    """Reads a JSON or YAML document."""
    if hugging_face.is_config(data):
        return hugging_face.from_config(data, options)
    for framework, reader in readers():
        if reader.configuration and reader.configuration.fits(data):
            reading = reader.configuration.read(data, _request(options))
            return _of_document("a configuration", framework, reading, options)
    if recorded.is_recorded(data):
        return _recorded(data, options)
    if arguments_file.is_arguments(data):
        texts = data if text.lstrip().startswith("{") else arguments_file.read_texts(text)
        return _arguments(arguments_file.from_yaml(texts, options), options, "a YAML file")
    raise refused(options.file, "a mapping of an unknown kind", known_files())


def _recorded(data: dict[str, Any], options: ImportOptions) -> Found:
    """Reads a recorded command; if no framework knows it, the final arguments that the trainer itself recorded."""
    started = recorded.started(data, options)
    values = data.get("inside", {}).get("arguments")
    if values and _reader_of(started) is None:
        for framework, reader in readers():
            if reader.settled:
                reading = reader.settled(values, _request(options))
                return _of_document("the arguments of a recorded start", framework, reading, options)
    return _command(started, options, "a recorded start")


def _arguments(started: Started, options: ImportOptions, what: str) -> Found:
    """Reads a file of arguments as those of the assumed framework."""
    title = next(framework.title for framework, reader in readers() if reader.program == started.program)
    return _command(started, options, f"{what} of {title}'s arguments")


def _command(started: Started, options: ImportOptions, what: str) -> Found:
    started = secrets.without(started)
    known = _reader_of(started)
    if known is None:
        titles = " or ".join(framework.title for framework, _ in reversed(readers()))
        raise refused(
            options.file,
            f"{' '.join(started.program)} takes no arguments that {titles} know",
            f"{hint_for_program()}, or write a recipe by hand with trainer.kind: custom",
        )
    framework, reader = known
    of_whom = what if framework.title in what else f"{what} of {framework.title}"
    return _of_command(framework, reader, started, options, what=of_whom)


def _reader_of(started: Started) -> tuple[Framework, Reader] | None:
    """Returns the framework that the command starts, and its reader; None for an unknown command."""
    return next((pair for pair in readers() if pair[1].starts(started.argv)), None)


def _of_command(
    framework: Framework,
    reader: Reader,
    started: Started,
    options: ImportOptions,
    *,
    what: str,
    stays: frozenset[str] = frozenset(),
) -> Found:
    """Parses the arguments of a command.

    `stays`: names of arguments that stay in the command though they are understood.
    """
    request = _request(options, ranks=world_size(started.sizes, options))
    reading = reader.read_command(started.argv, request, stays)
    _refuse_missing(framework, reading, started, options)
    reading = _with_vocabulary(reading, reader.tokenizer_flags, started, options)
    return Found(what=what, reading=reading, framework=framework, started=started)


def _of_document(what: str, framework: Framework, reading: Reading, options: ImportOptions) -> Found:
    """Returns the training job of a log or configuration, which has no command."""
    started = Started(sizes=reading.sizes)
    _refuse_missing(framework, reading, started, options)
    return Found(what=f"{what} of {framework.title}", reading=reading, started=started)


def _refuse_missing(framework: Framework, reading: Reading, started: Started, options: ImportOptions) -> None:
    """Raises BadInputError for a command that the trainer would refuse, or a precision that no recipe has."""
    if reading.missing:
        for note in started.notes:
            options.say(note)
        missing = Problem(
            where=options.file,
            what=f"{framework.title}'s {', '.join(reading.missing)} is in none of its arguments",
            hint="name the file that has all of them" + (", or --set what was empty" if started.notes else ""),
        )
        raise BadInputError(*started.problems, missing)
    if "precision" in reading.unread:
        raise refused(options.file, f"precision: {reading.unread['precision']}", "a recipe trains in one of these")


def _request(options: ImportOptions, *, ranks: int | None = None) -> ImportRequest:
    return ImportRequest(file=options.file, given=options.given, ranks=ranks, ranks_per_node=options.gpus_per_node)


def _with_vocabulary(reading: Reading, flags: tuple[str, ...], started: Started, options: ImportOptions) -> Reading:
    """Returns the reading with the vocabulary size of the command's tokenizer, if that is on this machine."""
    if reading.preset or reading.model.get("vocab_size") or "vocab_size" in options.given:
        return reading
    read = vocabulary_here(started.argv, flags, options.cwd or str(Path(options.file).parent))
    if read is None:
        return reading
    note = f"{read[0]} tokens, by {read[1]}"
    return replace(reading, model={**reading.model, "vocab_size": read[0]}, notes=(*reading.notes, note))


def _agreed(first: Imported, options: ImportOptions) -> Imported:
    """Returns the recipe, changed if its command would differ from the imported one: the arguments that differ stay in
    the command as they were."""
    framework, started = first.found.framework, first.found.started
    reader = framework.reader if framework else None
    if framework is None or reader is None or not (lost := _lost(reader, first, options)):
        return first
    found = _of_command(framework, reader, started, options, what=first.found.what, stays=frozenset(lost))
    second = built(found, options)
    return with_changes(second, _lost(reader, second, options))


def _lost(reader: Reader, imported: Imported, options: ImportOptions) -> dict[str, Difference]:
    """Returns the settings in which the recipe's command differs from the imported one."""
    if reader.differences is None:
        return {}
    started, stayed = imported.found.started, imported.found.reading.rest
    return dict(reader.differences(started.argv, stayed, imported.recipe, world_size(started.sizes, options)))


def _mapping(text: str, options: ImportOptions) -> dict[str, Any] | None:
    """Returns the mapping in JSON or YAML text; None for a script or other text."""
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError:
            return None
        return data if isinstance(data, dict) else None
    if text.startswith("#!") or not re.search(r"^[\w'\"-]+:(\s|$)", text, re.MULTILINE):
        return None
    if len(text) > MAX_YAML:
        raise refused(options.file, "it is too large for a configuration", "name the file of one training job")
    data = arguments_file.read_yaml(text)
    return data if isinstance(data, dict) else None


def _only_arguments(text: str) -> bool:
    """Returns whether the text consists of flags: its first word is one."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and lines[0].lstrip().startswith("--")


MAX_YAML = 2**22  # most characters of a text that is parsed as YAML
