"""Removes secrets from an imported command, and names them."""

from __future__ import annotations

import re
from dataclasses import replace

from autotune.importing.found import Found, Started
from trainer.launch_scripts.argv import Words, join, split
from trainer.launch_scripts.containers import Container
from trainer.secrets import is_key, is_secret_flag, masked, redacted


def without(started: Started) -> Started:
    """Returns the command without flags, overrides and shell lines that hold a secret, and with secrets in its
    launchers, #SBATCH lines and container removed."""
    words = split(started.argv)
    kept = [_without_secret_overrides(each) for each in words if not _holds_secret(each)]
    argv = join(kept)
    flags = [each.flag for each in words if each.flag and _holds_secret(each)]
    flags += [word.partition("=")[0] for each in words for word in each.values if _is_secret_override(word)]
    secret_lines = [line for line in started.setup if masked(line, {}) != line]
    flags += [masked(line, {}) for line in secret_lines]
    notes = [f"{flag} was left out: it is a secret; export it yourself" for flag in flags]
    return replace(
        started,
        argv=argv,
        launchers=tuple(replace(each, words=redacted(each.words)) for each in started.launchers),
        headers=redacted(started.headers),
        container=_without_keys(started.container),
        setup=tuple(line for line in started.setup if line not in secret_lines),
        notes=(*started.notes, *notes),
    )


def _without_keys(container: Container) -> Container:
    image = container.image if container.image is None or not is_key(container.image) else None
    prefix = () if any(map(is_key, container.prefix)) else container.prefix
    return replace(container, image=image, prefix=prefix)


def without_secrets(found: Found) -> Found:
    """Returns the training job with secrets masked, for the terminal, the document and the recipe's header."""
    reading, started = found.reading, found.started
    kept = tuple(replace(each, words=masked(each.words), why=masked(each.why)) for each in reading.kept)
    return replace(
        found,
        reading=replace(reading, kept=kept, notes=tuple(map(masked, reading.notes))),
        started=replace(started, headers=tuple(map(masked, started.headers)), notes=tuple(map(masked, started.notes))),
    )


def _holds_secret(words: Words) -> bool:
    values = words.values
    return words.flag is not None and bool(values) and (is_secret_flag(words.flag) or is_key(values[0]))


def _without_secret_overrides(words: Words) -> Words:
    return replace(words, values=tuple(word for word in words.values if not _is_secret_override(word)))


def _is_secret_override(word: str) -> bool:
    """Returns whether the word overrides a configuration with a secret: `logger.wandb_api_key=…`."""
    name, equals, value = word.lstrip("+").partition("=")
    return bool(equals) and re.fullmatch(r"[\w.]+", name) is not None and (is_secret_flag(name) or is_key(value))
