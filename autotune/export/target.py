"""Defines an export target: a name on the command line and a pure function from a recipe to text."""

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
    """Origin of an exported recipe: a trial of a study, or a recipe file.

    `date`: when the study started; `speedup`: throughput over the study's base recipe (1.0: equal), or, unless
    `base_runs`, over the nearest recipe that runs; `speedup_ci`: its 95 % interval.
    """

    source: str
    study: str | None = None
    trial: int | None = None
    speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    base_runs: bool = True
    simulated: bool = False
    provisional: str | None = None  # why the verdict or the gain is provisional
    date: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[ChangeShare, ...] = ()  # changes of the tuned recipe with their shares of the gain

    def lines(self) -> Iterator[str]:
        """Yields the provenance line by line, for a comment."""
        if self.study is None:
            yield f"From the recipe {_one_line(self.source)}."
            return
        over = "its base" if self.base_runs else "the recipe nearest to its base that runs"
        gained = "" if self.speedup is None else f", {self.speedup:.2f}x the throughput of {over}"
        if gained and self.speedup_ci is not None:
            gained += f" (95 % interval {self.speedup_ci[0]:.2f} to {self.speedup_ci[1]:.2f})"
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
    """Inputs of a target besides the recipe.

    `version`: of the framework it writes for (None: the newest known); `warnings`: lines for the top of the text;
    `bursts`: the folder with the bursts of the recipe's study.
    """

    version: str | None = None
    provenance: Provenance | None = None
    warnings: tuple[str, ...] = ()
    bursts: Path | None = None

    @property
    def origin(self) -> tuple[str, ...]:
        """Returns the warnings and the provenance, if known, as lines of text."""
        return (*self.warnings, *(self.provenance.lines() if self.provenance else ()))


@dataclass(frozen=True, kw_only=True)
class Target:
    """An export format.

    `render` writes all settings that the format can express and names the others in comments; `framework` returns the
    framework that will read it, whose rules apply (None: only the general rules).
    """

    name: str
    render: Callable[[Recipe, Context], str]
    framework: Callable[[Recipe], Framework | None] = lambda recipe: None


def _one_line(text: str) -> str:
    return " ".join(text.split())
