"""Recognizes passwords, keys and tokens, by their names or by their first characters, and masks them.

Files that users share (recipes, journals, outcomes, logs, reports, exports, errors) hold none; a job gets them from its
environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

LEFT_OUT = "<left out>"
_SURE = (
    r"API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|"
    r"(?:HF|HUB|HUGGING_?FACE|AUTH|ACCESS|API|BEARER|WANDB|GITHUB|GITLAB)_TOKEN"
)
_NAMES = re.compile(rf"(^|_)({_SURE})(_|$)|(^|_)(TOKEN|KEY|PAT|AUTH)$", re.IGNORECASE)
_FLAGS = re.compile(rf"(^|_)({_SURE})(_|$)", re.IGNORECASE)
_IS_PATH = re.compile(r"_(PATH|FILE|DIR)$", re.IGNORECASE)
# first characters of the keys of services, and a password inside an address
_VALUES = re.compile(
    r"(hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|nvapi-)[\w-]{4,}|eyJ[\w-]{8,}\.|\S*://[^/\s:@]+:[^/\s@]+@"
)
_PAIR = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>(?:[^,]|,(?![A-Za-z_]\w*=))*)")

# keys and passwords inside running text, where hf_config and sk-learn are words: only keys of full length, and values
# after unambiguous names
_KEYS_IN_TEXT = re.compile(
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?<![\w-])(?:(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|nvapi-)[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w.-]{8,})|(?<=Bearer )[\w.~+/-]{8,}"
)
_WORDS_OF_NAMES = _SURE.replace("_?", "[_-]?").replace(")_TOKEN", ")[_-]TOKEN")
_NAMED_VALUES = re.compile(
    rf"(?P<name>(?:(?i:(?<![A-Za-z0-9])(?:{_WORDS_OF_NAMES}))|(?<![A-Za-z0-9])(?:TOKEN|PAT))"
    r"(?![\w-]*(?i:PATH|FILE|DIR)\b)(?:[_-]\w+)*[\"']?)"
    r"(?P<between>\s*[=:]\s*[\"']?|\s+\.{2,}\s*|(?<=\w)\s+[\"']?(?=\S{20}))(?P<value>[^\s\"',;&)}\]]+)"
)
_NO_VALUE = re.compile(r"None|null|True|False|not|<.*|\$.*|\*+|.{0,2}")
SHORTEST = 8  # least characters of a value that is searched in texts: a shorter one would match unrelated text


def is_secret(name: str, value: str = "") -> bool:
    """Returns whether a variable's value must not be written to any file."""
    return is_key(value) or _is_secrets_name(name)


def is_secret_flag(flag: str) -> bool:
    """Returns whether the flag names a secret: --wandb-api-key, not --eod-token."""
    name = flag.lstrip("-").rpartition(".")[2].replace("-", "_")
    return _FLAGS.search(name) is not None and not _IS_PATH.search(name)


def is_key(value: str) -> bool:
    """Returns whether the value itself is or contains a secret: a service's key, or an address with a password."""
    return _VALUES.match(value) is not None or masked(value, {}) != value


def _is_secrets_name(name: str) -> bool:
    return _NAMES.search(name) is not None and not _IS_PATH.search(name)


def secrets_in(argv: Iterable[str]) -> Iterator[str]:
    """Yields the name of each secret in a command: --wandb-api-key X, logger.wandb_api_key=X; "a word" for a word that
    is itself a key."""
    before = ""
    for word in argv:
        name, equals, value = word.partition("=")
        if equals and value and (is_secret_flag(name.lstrip("+")) or is_key(value)):
            yield name
        elif not word.startswith("-") and (is_secret_flag(before) or is_key(word)):
            yield before or "a word"
        before = word if word.startswith("-") and not equals else ""


def redacted(words: Iterable[str]) -> tuple[str, ...]:
    """Returns a command's words with the value of each secret, NAME=value or flag, replaced by <left out>."""
    found: list[str] = []
    for word in words:
        flag = found[-1] if found and found[-1].startswith("-") and "=" not in found[-1] else ""
        name, equals, value = word.partition("=")
        if (flag and not word.startswith("-") and is_secret_flag(flag)) or _VALUES.match(word):
            found.append(LEFT_OUT)
        elif equals and name.startswith("-") and (is_secret_flag(name) or _VALUES.match(value)):
            found.append(f"{name}={LEFT_OUT}")
        else:
            found.append(masked(_PAIR.sub(_redacted_pair, word), {}))
    return tuple(found)


def masked(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns a text without values of secrets of the environment (None: of this process), without keys, and without
    what follows a name such as WANDB_API_KEY."""
    for value in _values(os.environ if environment is None else environment):
        text = text.replace(value, LEFT_OUT)
    return _NAMED_VALUES.sub(_masked_value, _KEYS_IN_TEXT.sub(LEFT_OUT, text))


def mask_file(path: Path) -> None:
    """Masks a file in place; a process that has it open for appending can continue."""
    text = path.read_bytes().decode(errors="surrogateescape")
    if (without := masked(text)) != text:
        path.write_bytes(without.encode(errors="surrogateescape"))


def names_in(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables whose values are searched in texts."""
    return [
        name
        for name, value in environment.items()
        if len(value) >= SHORTEST and (_is_secrets_name(name) or _VALUES.match(value))
    ]


def _values(environment: Mapping[str, str]) -> list[str]:
    """Returns the values to search, longest first, because one may be a prefix of another."""
    return sorted({environment[name] for name in names_in(environment)}, key=len, reverse=True)


def _masked_value(match: re.Match[str]) -> str:
    if _NO_VALUE.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{LEFT_OUT}"


def _redacted_pair(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    inner = _PAIR.sub(_redacted_pair, value)  # a pair inside the value, as in --env=NAME=value
    return f"{name}={LEFT_OUT if is_secret(name, value) else inner}"
