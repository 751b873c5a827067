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

    name: str  # its name in `trainer.kind`, `--to` and `--for`
    title: str  # its name as users write it
    rank_command: Callable[[Recipe, str | None, Path | None], RankCommand]
    burst_argv: Callable[[BurstRequest], tuple[str, ...]]
    log_patterns: Mapping[str, str]  # regular expressions of the lines that a burst reads
    acting_knobs: Callable[[Recipe, Path, str], dict[str, Plain]]  # the knob values that the trainer reports
    configuration: str | None = None  # the file in the trainer's folder with its final configuration
    takes_mock_data: bool = False  # true if it has arguments that replace the user's data by mock data
    # variables that it requires and the recipe does not set
    variables: Callable[[Recipe], dict[str, str]] = lambda recipe: {}
    # words of a command by setting, as text for a shell
    words_by_setting: Callable[[Sequence[str]], dict[str, str]] = words_by_flag
    # the findings that make it refuse a recipe in a version; None if it has no rules of its own
    findings: Callable[[Recipe, str | None], list[Finding]] | None = None
    command_findings: Callable[[Sequence[str], Recipe], list[Finding]] = lambda command, recipe: []
    packing: Callable[[Sequence[str]], tuple[str, ...]] = lambda command: ()  # words of a command that pack sequences
    # the exported script of a recipe without a trainer of its own; the last argument has comment lines on its origin
    script: Callable[[Recipe, str | None, Sequence[str]], str] | None = None
    reader: Reader | None = None
