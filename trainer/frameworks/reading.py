"""The request to a framework's reader to import a file, and the parts of a recipe that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.launch_scripts.launchers import Sizes
from trainer.recipe import Recipe

Difference = tuple[Any, Any]  # a value in the file, and with the recipe


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """A file to import. `given` are values of --set by name; `ranks` is the world size, if known."""

    file: str
    given: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    ranks_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Words that stay in the command although they affect something that a recipe decides, and why."""

    words: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The parts of a recipe that were read.

    `model` has fields of the architecture unless `preset` names the model; `knobs` are by name.
    """

    model: Mapping[str, Any]
    knobs: Mapping[str, Any]
    preset: str | None = None
    rest: tuple[str, ...] = ()  # words of a command that stay, in their order
    kept: tuple[Kept, ...] = ()
    passed: tuple[str, ...] = ()  # flags of the trainer that a recipe leaves alone
    own: tuple[str, ...] = ()  # words of flags that only a fork of the framework has
    missing: tuple[str, ...] = ()  # missing flags without which the trainer does not start
    unread: Mapping[str, str] = field(default_factory=dict)  # knob or field -> why a recipe does not hold its value
    sizes: Sizes = field(default_factory=Sizes)
    notes: tuple[str, ...] = ()
    reported_tflops: float | None = None  # per GPU, as a log reports it: the median of its iterations


@dataclass(frozen=True, kw_only=True)
class Document:
    """A type of file that a trainer writes: text, or a mapping read from it.

    `fits`: returns true if a file is of this type.
    """

    fits: Callable[[Any], bool]
    read: Callable[[Any, ImportRequest], Reading]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads a framework's commands, logs and configurations.

    `starts`: returns true if an argument list is one of its commands. `read_command` takes the names whose words remain
    in the list although the recipe has them. `differences` compares a command with the recipe and the remaining words,
    for a world size. `settled` reads the arguments of a recorded run.
    """

    order: int  # a command that two readers would take goes to the lower one
    starts: Callable[[Sequence[str]], bool]
    read_command: Callable[[Sequence[str], ImportRequest, frozenset[str]], Reading]
    differences: Callable[[Sequence[str], Sequence[str], Recipe, int | None], Mapping[str, Difference]] | None = None
    log: Document | None = None
    configuration: Document | None = None
    settled: Callable[[Mapping[str, Any], ImportRequest], Reading] | None = None
    # the release of the checkout that a command and the lines of shell before it name
    checkout_version: Callable[[Sequence[str], Sequence[str]], str | None] = lambda command, setup: None
    frozen: Callable[[Sequence[str]], tuple[str, ...]] = lambda command: ()  # knobs with a value that no recipe holds
    # true if a recipe keeps knobs at their default, since the trainer's default may differ
    keeps_defaults: bool = False
    readable: str = ""  # the files that are read, as a hint names them
    left_by_runs: str = ""  # the file that a run writes, as a hint names it
    program: tuple[str, ...] = ()  # the program that is assumed for a file of arguments; set by the default framework
    whole_flags: frozenset[str] = frozenset()  # flags whose value in a file of arguments is a single word
    tokenizer_flags: tuple[str, ...] = ()  # flags that name a file with the vocabulary
    # flags and paths that a burst does not need, since it saves and reports nothing
    unused: frozenset[str] = frozenset()
