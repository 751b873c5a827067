"""The lines that Megatron-LM prints: each iteration, and at the start every argument with its value after validation.

Megatron-LM since core_v0.9.0 and Megatron-Bridge since 0.2 print iterations in the same form. Sources:
megatron/training/training.py and utils.py (0.16.1 and 2026-08), megatron/bridge/training/utils/train_utils.py (0.3.1).
"""

from __future__ import annotations

import ast
import re
import statistics
from typing import Any

_PLAIN = r"\d(?:[\d.,]*\d)?"  # a locale may put a comma where others have a point
_NUMBER = rf"[-+]?(?:{_PLAIN}(?:[eE][-+]?\d+)?|(?i:nan|inf))"

# name -> pattern; its named groups are read
LOG_PATTERNS = {
    "iteration": r"iteration\s+(?P<iteration>\d+)/\s*\d+ \|.*?"
    rf"elapsed time per iteration \(ms\):\s*(?P<ms>{_PLAIN})",
    "loss": rf"\| lm loss:\s*(?P<loss>{_NUMBER})",
    "grad_norm": rf"\| grad norm:\s*(?P<grad_norm>{_NUMBER})",
    "skipped": r"number of skipped iterations:\s*(?P<skipped>\d+)",
    "nan": r"number of nan iterations:\s*(?P<nan>\d+)",
    "tflops": rf"throughput per GPU \(TFLOP/s/GPU\):\s*(?P<tflops>{_NUMBER})",
    "memory": r"\[Rank (?P<rank>\d+)\] \(after \d+ iterations\) memory \((?P<unit>MB|GB)\)"
    rf".*?max[ -]allocated[^:]*:\s*(?P<allocated>{_PLAIN})",
}
_BEGIN = re.compile(r"-{5,} arguments -{5,}")
_END = re.compile(r"-{5,} end of arguments -{5,}")
_LINE = re.compile(r"^(?:\S*\s*\[?\w*\]?:)?\s*(\w+) (?:\.+ | )(.*)$")
_ENUM = re.compile(r"(?:[A-Z]\w*\.)(\w+)")


def has_arguments(text: str) -> bool:
    return _BEGIN.search(text) is not None


def logged_values(text: str) -> dict[str, Any]:
    """Returns {name: value} of the first list of arguments in a log; {} if there is none.

    Text stays text, AttnBackend.auto is "auto".
    """
    begin = _BEGIN.search(text)
    if begin is None:
        return {}
    end = _END.search(text, begin.end())
    dump = text[begin.end() : end.start() if end else len(text)]
    matches = (_LINE.match(line.rstrip()) for line in dump.splitlines())
    return {match[1]: _value(match[2].strip()) for match in matches if match}


def logged_tflops(text: str) -> float | None:
    """Returns the median throughput of a log's iterations, TFLOP/s per GPU; None if it has none above 0."""
    rates = (found["tflops"] for found in re.finditer(LOG_PATTERNS["tflops"], text))
    figures = [
        figure for each in rates if "," not in each and (figure := float(each)) > 0
    ]  # a locale's comma is unclear
    return statistics.median(figures) if figures else None


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
