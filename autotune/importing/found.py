"""Models a training job as any kind of file describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainer.errors import Problem, refused
from trainer.frameworks import Framework
from trainer.frameworks.reading import Reading
from trainer.launch_scripts.containers import Container
from trainer.launch_scripts.launchers import Peeled, Sizes
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import known_hardware
from trainer.recipe.source import near

MAX_SHOWN = 60  # characters after which a text in a message is cut


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """The user's request: the file to import, and settings on the command line."""

    file: str
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    env: tuple[str, ...] = ()  # variables of the user's shell that the script sees; ALL: every one
    exists: tuple[str, ...] = ()  # files that the script sees although they are not on this machine
    absent: tuple[str, ...] = ()  # files that the script does not see although they are on this machine
    cwd: str | None = None  # working folder of the script; None: the folder it is in
    trust: bool = False  # run the script even without isolation
    say: Callable[[str], None] = lambda line: None  # prints a line for the user


@dataclass(frozen=True, kw_only=True)
class Started:
    """A training command with its launchers, not yet parsed.

    `program`: python and its script; `argv`: the arguments after it.
    """

    program: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    launchers: tuple[Peeled, ...] = ()
    headers: tuple[str, ...] = ()  # words of #SBATCH lines
    container: Container = field(default_factory=Container)  # container of Slurm's tasks
    setup: tuple[str, ...] = ()  # lines that prepare the shell: module load, conda activate
    expand: tuple[str, ...] = ()  # words of argv and values of env that bash expands, as between double quotes
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()  # values that only the user knows


@dataclass(frozen=True, kw_only=True)
class Found:
    """The parts of a recipe that a file gives."""

    what: str  # the kind of file, with its framework
    reading: Reading
    framework: Framework | None = None  # framework of the command; None without a command
    started: Started = field(default_factory=Started)

    @property
    def command(self) -> tuple[str, ...]:
        """Returns the part of the command that did not become the recipe."""
        return (*self.started.program, *self.reading.rest)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.started.notes, *self.reading.notes)


def world_size(sizes: Sizes, options: ImportOptions) -> int | None:
    """Returns the number of ranks by the user, the file or the table of GPUs; None if it is unknown."""
    nodes = options.nodes or sizes.nodes
    per_node = options.gpus_per_node or sizes.gpus_per_node
    if per_node is None and options.gpu in known_hardware():
        per_node = known_hardware()[options.gpu].gpus_per_node
    return nodes * per_node if nodes and per_node else sizes.tasks


def short(text: str) -> str:
    """Returns the text as one line, cut after MAX_SHOWN characters."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= MAX_SHOWN else f"{one_line[:MAX_SHOWN]}…"


def check_given(options: ImportOptions, *texts: str) -> None:
    """Raises BadInputError for a --set whose name is neither in these texts nor a field of the model, an argument of
    the script (@, 1, 2) or a flag."""
    for name in options.given:
        in_text = any(name in text or (name == "HOME" and "~" in text) for text in texts)
        known = name.isdigit() or name == "@" or name.startswith("--")
        if not in_text and not known and name not in Architecture.model_fields and name != "model":
            words = near(name, Architecture.model_fields)
            hint = f"did you mean {words[0]}?" if words else "name a variable of the script, or a field of the model"
            raise refused(f"--set {name}", "nothing in the file has that name", hint)
