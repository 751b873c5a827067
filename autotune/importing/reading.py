"""From a file of any kind to a recipe: what kind it is, who reads it, and whether the recipe means the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.importing import arguments_file, hugging_face, recorded, scripts, secrets
from autotune.importing.files import text_of
from autotune.importing.found import Asked, Found, Started, check_given, world_size
from autotune.importing.here import vocabulary_here
from autotune.importing.hints import known_files, of_a_program
from autotune.importing.recipe import Imported, built, with_changes
from trainer.errors import BadInputError, Problem, refused
from trainer.frameworks import Framework
from trainer.frameworks.reading import Difference, ImportRequest, Reader, Reading
from trainer.frameworks.registry import readers


def imported(asked: Asked) -> Imported:
    """The recipe of a file. BadInputError says what is missing or not understood."""
    text = text_of(Path(asked.file), known=known_files())
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
    """What the file says, and the command it says it with, if it does."""
    logs = [(framework, reader.log) for framework, reader in readers() if reader.log and reader.log.fits(text)]
    data = None if logs else _mapping(text, asked)
    if data is not None or logs or _only_arguments(text):
        check_given(asked, text)  # a script's also in what it reads
    for framework, log in logs:
        return _said(framework, log.read(text, _request(asked)), asked, what=f"a log of {framework.title}"), None
    if data is not None:
        return _of_mapping(data, text, asked)
    if _only_arguments(text):
        return _arguments(arguments_file.from_text(text, asked), asked, "a file")
    if asked.file.endswith(".py"):
        raise refused(asked.file, "it is a Python program, which is not read", of_a_program())
    return _command(scripts.started(text, asked), asked, "a launch script")


def _of_mapping(data: dict[str, Any], text: str, asked: Asked) -> tuple[Found, Started | None]:
    """What a JSON or YAML document says."""
    if hugging_face.is_config(data):
        return hugging_face.from_config(data, asked), None
    for framework, reader in readers():
        if reader.configuration and reader.configuration.fits(data):
            reading = reader.configuration.read(data, _request(asked))
            return _said(framework, reading, asked, what=f"a configuration of {framework.title}"), None
    if recorded.is_recorded(data):
        return _recorded(data, asked)
    if arguments_file.is_arguments(data):
        texts = data if text.lstrip().startswith("{") else arguments_file.read_texts(text)
        return _arguments(arguments_file.from_yaml(texts, asked), asked, "a YAML file")
    raise refused(asked.file, "a mapping of an unknown kind", known_files())


def _recorded(data: dict[str, Any], asked: Asked) -> tuple[Found, Started | None]:
    """A command that was recorded, or the arguments that a trainer had settled on inside a real start."""
    started = recorded.started(data, asked)
    values = data.get("inside", {}).get("arguments")
    if values and _reader_of(started) is None:
        for framework, reader in readers():
            if reader.settled:
                what = f"the arguments of a recorded start of {framework.title}"
                return _said(framework, reader.settled(values, _request(asked)), asked, what=what), None
    return _command(started, asked, "a recorded start")


def _arguments(started: Started, asked: Asked, what: str) -> tuple[Found, Started | None]:
    """A file of arguments, which are those of the framework whose program is assumed."""
    title = next(framework.title for framework, reader in readers() if reader.program == started.program)
    return _command(started, asked, f"{what} of {title}'s arguments")


def _command(started: Started, asked: Asked, what: str) -> tuple[Found, Started | None]:
    started = secrets.without(started)
    known = _reader_of(started)
    if known is None:
        titles = " or ".join(framework.title for framework, _ in reversed(readers()))
        raise refused(
            asked.file,
            f"{' '.join(started.program)} takes no arguments that {titles} know",
            f"{of_a_program()}, or write a recipe by hand with trainer.kind: custom",
        )
    framework, reader = known
    of_whom = what if framework.title in what else f"{what} of {framework.title}"
    return _of_command(framework, reader, started, asked, what=of_whom), started


def _reader_of(started: Started) -> tuple[Framework, Reader] | None:
    """The framework whose command it is."""
    return next((pair for pair in readers() if pair[1].starts(started.argv)), None)


def _of_command(
    framework: Framework,
    reader: Reader,
    started: Started,
    asked: Asked,
    *,
    what: str,
    stays: frozenset[str] = frozenset(),
) -> Found:
    """What the command says, its argument list divided. `stays`: names whose words are left in it all the same."""
    request = _request(asked, ranks=world_size(started.sizes, asked))
    reading = reader.read_command(started.argv, request, stays)
    found = _said(framework, reading, asked, what=what, started=started)
    return _with_vocabulary(found, reader.tokenizer_flags, started, asked)


def _said(framework: Framework, reading: Reading, asked: Asked, *, what: str, started: Started | None = None) -> Found:
    """Joins a reading with what starts its command. BadInputError for a command that the trainer would refuse."""
    _refuse_missing(framework, reading, asked, started)
    found = Found(
        what=what,
        model=reading.preset or reading.model,
        knobs=reading.knobs,
        kept=reading.kept,
        sizes=reading.sizes,
        notes=reading.notes,
    )
    if started is None:
        return found
    return replace(
        found,
        framework=framework if started.program else None,
        command=(*started.program, *reading.rest),
        passed=reading.passed,
        own=reading.own,
        env=started.env,
        sizes=started.sizes,
        launchers=started.launchers,
        headers=started.headers,
        container=started.container,
        setup=started.setup,
        expand=started.expand,
        problems=started.problems,
        notes=(*started.notes, *reading.notes),
    )


def _refuse_missing(framework: Framework, reading: Reading, asked: Asked, started: Started | None) -> None:
    if reading.missing:
        notes = () if started is None else started.notes
        for note in notes:
            asked.tell(note)
        missing = Problem(
            where=asked.file,
            what=f"{framework.title}'s {', '.join(reading.missing)} is in none of its arguments",
            hint="name the file that has all of them" + (", or --set what was empty" if notes else ""),
        )
        raise BadInputError(*(() if started is None else started.problems), missing)
    if "precision" in reading.unread:
        raise refused(asked.file, f"precision: {reading.unread['precision']}", "a recipe trains in one of these")


def _request(asked: Asked, *, ranks: int | None = None) -> ImportRequest:
    return ImportRequest(file=asked.file, given=asked.given, ranks=ranks, ranks_per_node=asked.gpus_per_node)


def _with_vocabulary(found: Found, flags: tuple[str, ...], started: Started, asked: Asked) -> Found:
    """The size of the vocabulary from the tokenizer that the command names, where that is on this machine."""
    if isinstance(found.model, str) or found.model.get("vocab_size") or "vocab_size" in asked.given:
        return found
    read = vocabulary_here(started.argv, flags, asked.cwd or str(Path(asked.file).parent))
    if read is None:
        return found
    note = f"{read[0]} tokens, by {read[1]}"
    return replace(found, model={**found.model, "vocab_size": read[0]}, notes=(*found.notes, note))


def _agreed(first: Imported, started: Started, asked: Asked) -> Imported:
    """The recipe whose words, beside what stayed, mean what the command meant: what would not come back stays."""
    framework = first.found.framework
    reader = framework.reader if framework else None
    if framework is None or reader is None or not (lost := _lost(reader, first, started, asked)):
        return first
    found = _of_command(framework, reader, started, asked, what=first.found.what, stays=frozenset(lost))
    second = built(found, asked)
    return with_changes(second, _lost(reader, second, started, asked))


def _lost(reader: Reader, imported: Imported, started: Started, asked: Asked) -> dict[str, Difference]:
    if reader.differences is None:
        return {}
    stayed = imported.found.command[len(started.program) :]
    world = world_size(started.sizes, asked)
    return dict(reader.differences(started.argv, stayed, imported.recipe, world))


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
