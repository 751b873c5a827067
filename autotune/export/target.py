"""Export target: a name on the command line and a pure function from a recipe to text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.looks.shares import share_lines
from policies.trial import ChangeShare
from trainer.frameworks import Framework
from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Origin of an exported recipe: a trial of a study, or a recipe file. `date` is the day of the export's source,
    `gain` throughput over the study's base (1.0 is the base itself), or over the nearest recipe that runs where that
    does not."""

    source: str
    study: str | None = None
    trial: int | None = None
    gain: float | None = None
    base_runs: bool = True
    simulated: bool = False
    provisional: str | None = None  # why its verdict, or the gain, is
    date: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[ChangeShare, ...] = ()  # of the tuned recipe, with their shares

    def lines(self) -> Iterator[str]:
        """Yields the provenance as text for a comment, line by line; nothing where nothing is known."""
        if self.study is None:
            yield f"From the recipe {_one_line(self.source)}."
            return
        over = "its base" if self.base_runs else "the recipe nearest to its base that runs"
        gained = "" if self.gain is None else f", {self.gain:.2f}x the throughput of {over}"
        how = " (simulated)" if self.simulated and gained else ""
        when = f", {self.date}" if self.date else ""
        yield f"From study {_one_line(self.study)}, trial {self.trial}{gained}{how}{when}."
        if self.provisional:
            yield f"{self.provisional[:1].upper()}{self.provisional[1:]}."
        if self.versions:
            named = ", ".join(f"{name} {version}" for name, version in self.versions.items())
            yield f"Tuned with {_one_line(named)}."
        yield from map(_one_line, share_lines(self.changes))


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of a target in addition to the recipe: the version of the tool it writes for (None: the newest that it
    knows), the recipe's origin, warnings for whoever starts it, and the folder of its study's bursts."""

    version: str | None = None
    provenance: Provenance | None = None
    warnings: tuple[str, ...] = ()
    bursts: Path | None = None

    @property
    def origin(self) -> tuple[str, ...]:
        """Returns the warnings, and the provenance where it is known, as lines of text."""
        return (*self.warnings, *(self.provenance.lines() if self.provenance else ()))


@dataclass(frozen=True, kw_only=True)
class Target:
    """`render` says everything of the recipe that the target can express, and names in comments what it cannot;
    `framework` is the one that would read it, whose rules a recipe has to keep; None for everyone's."""

    name: str
    render: Callable[[Recipe, Context], str]
    framework: Callable[[Recipe], Framework | None] = lambda recipe: None


def _one_line(text: str) -> str:
    return " ".join(text.split())
