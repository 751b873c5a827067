"""Reads the lines that a trainer prints, with the patterns of its framework.

The last rank prints the iteration line, and lines of several ranks may be joined: patterns are searched for anywhere in
a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trainer.errors import BadInputError, Problem

_MB, _GB = 2**20, 10**9
# colours and other escape sequences of terminals
_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


@dataclass(kw_only=True)
class Iteration:
    """One training step as the trainer printed it."""

    number: int
    ms: float
    loss: float | None = None  # a NaN loss is left out of the line
    grad_norm: float | None = None
    skipped: int = 0
    nan: int = 0
    tflops: float | None = None  # per GPU, as the trainer counts

    def not_finite(self) -> str | None:
        """Returns which of its numbers is NaN or infinite, so that training cannot continue; None if it can.

        An infinite gradient norm in a skipped step is normal: the loss scaler searches.
        """
        if self.nan:
            return f"the trainer counts a NaN iteration at iteration {self.number}"
        if self.loss is not None and not math.isfinite(self.loss):
            return f"loss of iteration {self.number} is {self.loss}"
        if self.grad_norm is not None and not math.isfinite(self.grad_norm) and not self.skipped:
            return f"gradient norm of iteration {self.number} is {self.grad_norm}"
        return None


@dataclass(kw_only=True)
class Reading:
    """The state of a log so far: iterations by number, and the highest `max allocated` of each rank that printed
    one."""

    patterns: dict[str, re.Pattern[str]]
    iterations: dict[int, Iteration] = field(default_factory=dict)
    peak_gib: dict[int, float] = field(default_factory=dict)

    def feed(self, line: str) -> None:
        """Reads one line, which may be several ranks' lines joined together.

        Skips matches of the user's own patterns that are not numbers.
        """
        line = plain(line)
        steps = list(self.patterns["iteration"].finditer(line))
        for index, found in enumerate(steps):
            begin = found.start() if index else 0
            end = steps[index + 1].start() if index + 1 < len(steps) else len(line)
            with suppress(ValueError):
                each = Iteration(number=int(found["iteration"]), ms=_milliseconds(found))
                self._more(each, line[begin:end])
                self.iterations[each.number] = each
        for found in self.patterns["memory"].finditer(line):
            unit = _GB if found.groupdict().get("unit") == "GB" else _MB
            with suppress(ValueError):
                rank, gib = int(found["rank"]), size_in(found["allocated"]) * unit / 2**30
                self.peak_gib[rank] = max(gib, self.peak_gib.get(rank, 0.0))

    def _more(self, each: Iteration, line: str) -> None:
        for name in ("loss", "grad_norm", "tflops"):
            if found := self.patterns[name].search(line):
                with suppress(ValueError):
                    setattr(each, name, number_in(found[name]))
        for name in ("skipped", "nan"):
            if found := self.patterns[name].search(line):
                with suppress(ValueError):
                    setattr(each, name, int(found[name]))


def _milliseconds(found: re.Match[str]) -> float:
    """Returns the time in ms; a user's own pattern may have a group `s` for seconds instead."""
    groups = found.groupdict()
    return size_in(groups["ms"]) if groups.get("ms") else 1e3 * number_in(groups["s"])


def plain(line: str) -> str:
    """Returns the text without ANSI colours."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def size_in(text: str) -> float:
    """Parses a time or a memory size.

    A comma separates thousands (1,234 is 1234), since nobody prints three decimals of these.
    """
    return float(text.replace(",", "")) if re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", text) else number_in(text)


def number_in(text: str) -> float:
    """Parses a number: 12.5, also written 12,5; 1234.5, also written 1,234.5 or 1.234,5.

    A trailing comma or point is not part of it. Raises ValueError if the text is not a number.
    """
    text = text.rstrip(".,")
    if "," not in text:
        return float(text if text.count(".") == 1 else text.replace(".", ""))
    whole, _, part = text.rpartition("," if text.rfind(",") > text.rfind(".") else ".")
    return float(f"{re.sub('[.,]', '', whole)}.{part}")


def patterns_with(known: Mapping[str, str], own: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Returns a framework's patterns, with those that the user defined in their place.

    Raises BadInputError for one that the framework has not, that is not a pattern, or that has no group to read.
    """
    problems = [problem for name, text in own.items() if (problem := _problem(name, text, known))]
    if problems:
        raise BadInputError(*problems)
    return {name: re.compile(text) for name, text in {**known, **own}.items()}


def _problem(name: str, text: str, known: Mapping[str, str]) -> Problem | None:
    where = f"trainer.patterns.{name}"
    if name not in known:
        return Problem(where=where, what="no such line", hint=f"there are {', '.join(known)}")
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        return Problem(where=where, what=f"is not a regular expression: {error}", hint="Python's re syntax")
    wanted = {"iteration": ("iteration",), "memory": ("rank", "allocated")}.get(name, (name,))
    missing = [group for group in wanted if group not in groups]
    if name == "iteration" and not {"ms", "s"} & groups.keys():
        missing.append("ms")
    if not missing:
        return None
    shown = " and ".join(f"(?P<{group}>…)" for group in missing)
    return Problem(where=where, what=f"has no group {shown}", hint="name what is to be read")
