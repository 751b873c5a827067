"""Passwords, keys and tokens in what is imported: named, never written down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from autotune.importing.found import Started
from trainer.command_line.argv import Words, join, split

LEFT_OUT = "<left out>"
_SURE = (
    r"API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|"
    r"(HF|HUB|HUGGING_?FACE|AUTH|ACCESS|API|BEARER|WANDB|GITHUB|GITLAB)_TOKEN"
)
_NAMES = re.compile(rf"(^|_)({_SURE})(_|$)|(^|_)(TOKEN|KEY|PAT|AUTH)$", re.IGNORECASE)
_FLAGS = re.compile(rf"(^|_)({_SURE})(_|$)", re.IGNORECASE)
_IS_PATH = re.compile(r"_(PATH|FILE|DIR)$", re.IGNORECASE)
# how the keys of services begin, and a password inside an address
_VALUES = re.compile(
    r"(hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|nvapi-)[\w-]{4,}|eyJ[\w-]{8,}\.|\S*://[^/\s:@]+:[^/\s@]+@"
)
_PAIR = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>(?:[^,]|,(?![A-Za-z_]\w*=))*)")


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable's value belongs into no file."""
    return _VALUES.match(value) is not None or (_NAMES.search(name) is not None and not _IS_PATH.search(name))


def is_secret_flag(flag: str) -> bool:
    """Whether a flag's name says so: --wandb-api-key, not --eod-token."""
    name = flag.lstrip("-").rpartition(".")[2].replace("-", "_")
    return _FLAGS.search(name) is not None and not _IS_PATH.search(name)


def without(started: Started) -> Started:
    """The command without flags that hold one, and its launchers with their names only."""
    words = split(started.argv)
    kept = [_without_overrides(each) for each in words if not _holds_secret(each)]
    argv = join(kept)
    flags = [each.flag for each in words if each.flag and _holds_secret(each)]
    flags += [word.partition("=")[0] for each in words for word in each.values if _is_override(word)]
    notes = [f"{flag} was left out: it holds a secret, which no file should; export it yourself" for flag in flags]
    return replace(
        started,
        argv=argv,
        launchers=tuple(replace(each, words=redacted(each.words)) for each in started.launchers),
        headers=redacted(started.headers),
        notes=(*started.notes, *notes),
    )


def redacted(words: Iterable[str]) -> tuple[str, ...]:
    """A launcher's words, in which each NAME=value of a secret and each flag's secret stands as <left out>."""
    found: list[str] = []
    for word in words:
        flag = found[-1] if found and found[-1].startswith("-") and "=" not in found[-1] else ""
        name, equals, value = word.partition("=")
        if (flag and not word.startswith("-") and is_secret_flag(flag)) or _VALUES.match(word):
            found.append(LEFT_OUT)
        elif equals and name.startswith("-") and (is_secret_flag(name) or _VALUES.match(value)):
            found.append(f"{name}={LEFT_OUT}")
        else:
            found.append(_PAIR.sub(_redacted_pair, word))
    return tuple(found)


def _redacted_pair(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    inner = _PAIR.sub(_redacted_pair, value)  # --env=NAME=value
    return f"{name}={LEFT_OUT if is_secret(name, value) else inner}"


def _holds_secret(words: Words) -> bool:
    values = words.values
    return words.flag is not None and bool(values) and (is_secret_flag(words.flag) or bool(_VALUES.match(values[0])))


def _without_overrides(words: Words) -> Words:
    return replace(words, values=tuple(word for word in words.values if not _is_override(word)))


def _is_override(word: str) -> bool:
    """`logger.wandb_api_key=…` of Megatron-Bridge."""
    name, equals, value = word.lstrip("+").partition("=")
    return bool(equals) and re.fullmatch(r"[\w.]+", name) is not None and (is_secret_flag(name) or _is_key(value))


def _is_key(value: str) -> bool:
    return _VALUES.match(value) is not None
