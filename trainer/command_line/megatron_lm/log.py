"""The arguments that Megatron-LM prints when it starts: every name with the value it has after validation."""

from __future__ import annotations

import ast
import re
from typing import Any

_BEGIN = re.compile(r"-{5,} arguments -{5,}")
_END = re.compile(r"-{5,} end of arguments -{5,}")
_LINE = re.compile(r"^(?:\S*\s*\[?\w*\]?:)?\s*(\w+) (?:\.+ | )(.*)$")
_ENUM = re.compile(r"(?:[A-Z]\w*\.)(\w+)")


def has_arguments(text: str) -> bool:
    return _BEGIN.search(text) is not None


def logged_values(text: str) -> dict[str, Any]:
    """Name -> value of the first dump in a log; {} without one. Text stays text, AttnBackend.auto is "auto"."""
    begin = _BEGIN.search(text)
    if begin is None:
        return {}
    end = _END.search(text, begin.end())
    dump = text[begin.end() : end.start() if end else len(text)]
    matches = (_LINE.match(line.rstrip()) for line in dump.splitlines())
    return {match[1]: _value(match[2].strip()) for match in matches if match}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    if text.startswith("["):  # a list of enums
        words = re.findall(r"<\w+\.(\w+):[^>]*>|([\w.]+)", text)
        return [first or second.rpartition(".")[2] for first, second in words]
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    enum = _ENUM.fullmatch(text)
    return enum[1] if enum else text
