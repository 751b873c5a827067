"""The type of a framework: a trainer that people start from a command line, and how its command expresses a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.frameworks.burst import BurstRequest
from trainer.frameworks.reading import Reader
from trainer.launch_scripts.argv import words_by_flag
from trainer.recipe import Recipe
from trainer.recipe.rules import Finding

Plain = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class RankCommand:
    """The command of one rank for a recipe.

    `lost`: messages on the parts of the recipe that it does not express, and why.
    """

    argv: tuple[str, ...]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework, as its folder describes it.

    A version is text as `--for` takes it, None for the newest; functions raise BadInputError for an unknown one.
    `rank_command` takes a recipe, a version and the folder of its study's bursts; `burst_argv` returns the shorter run
    of a burst. `acting_knobs` takes a recipe, the folder that the trainer wrote to and the log of rank 0.
    """

    name: str  # in `trainer.kind`, `--to` and `--for`
    title: str  # as its users write it
    rank_command: Callable[[Recipe, str | None, Path | None], RankCommand]
    burst_argv: Callable[[BurstRequest], tuple[str, ...]]
    log_patterns: Mapping[str, str]  # regular expressions of the lines that a burst reads
    acting_knobs: Callable[[Recipe, Path, str], dict[str, Plain]]  # knobs as the trainer says it runs with them
    configuration: str | None = None  # the file of its own folder with everything that the trainer runs with
    takes_mock_data: bool = False  # true for arguments that replace the user's data
    variables: Callable[[Recipe], dict[str, str]] = lambda recipe: {}  # that it demands and the recipe leaves open
    words_by_setting: Callable[[Sequence[str]], dict[str, str]] = words_by_flag  # of a command, as text for a shell
    # everything that it refuses of a recipe in a version; None if no rule is its own
    findings: Callable[[Recipe, str | None], list[Finding]] | None = None
    command_findings: Callable[[Sequence[str], Recipe], list[Finding]] = lambda command, recipe: []
    packing: Callable[[Sequence[str]], tuple[str, ...]] = lambda command: ()  # its words that pack sequences
    # the export of a recipe without a trainer of its own, under these lines of origin
    script: Callable[[Recipe, str | None, Sequence[str]], str] | None = None
    reader: Reader | None = None
