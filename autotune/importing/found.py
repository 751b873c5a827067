"""Model of a training job as a file describes it, whatever kind of file it is."""

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

MOST_SHOWN = 60  # letters


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Settings of the user in addition to the file."""

    file: str
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    env: tuple[str, ...] = ()  # variables of the user's own that a script sees; ALL: all of them
    exists: tuple[str, ...] = ()  # files that a script finds although they are not here
    absent: tuple[str, ...] = ()  # files that it does not find although they are here
    cwd: str | None = None  # the folder that a script is started in; None: its own
    trust: bool = False  # run a script also where nothing keeps it from changing files
    tell: Callable[[str], None] = lambda line: None  # says what is about to be done


@dataclass(frozen=True, kw_only=True)
class Started:
    """A command as a file starts it: `argv` behind `program` (python and its script), not yet understood."""

    program: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    launchers: tuple[Peeled, ...] = ()
    headers: tuple[str, ...] = ()  # words of #SBATCH lines
    container: Container = field(default_factory=Container)  # of Slurm's tasks
    setup: tuple[str, ...] = ()  # lines that prepare the shell: module load, conda activate
    expand: tuple[str, ...] = ()  # words of argv and values of env that bash expands, as between double quotes
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()  # what only the user knows


@dataclass(frozen=True, kw_only=True)
class Found:
    """A recipe's parts as a file says them."""

    what: str  # the kind of file, and of which framework
    reading: Reading
    framework: Framework | None = None  # of its command; None where it has none
    started: Started = field(default_factory=Started)

    @property
    def command(self) -> tuple[str, ...]:
        """Returns what stays of the command."""
        return (*self.started.program, *self.reading.rest)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.started.notes, *self.reading.notes)


def world_size(sizes: Sizes, asked: Asked) -> int | None:
    """Returns the number of ranks, where the user, the file or the table of GPUs says it."""
    nodes = asked.nodes or sizes.nodes
    per_node = asked.gpus_per_node or sizes.gpus_per_node
    if per_node is None and asked.gpu in known_hardware():
        per_node = known_hardware()[asked.gpu].gpus_per_node
    return nodes * per_node if nodes and per_node else sizes.tasks


def short(text: str) -> str:
    """Returns the text as one line, cut where it is long."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= MOST_SHOWN else f"{one_line[:MOST_SHOWN]}…"


def check_given(asked: Asked, *texts: str) -> None:
    """Raises BadInputError for a --set that nothing in these texts asks for."""
    for name in asked.given:
        in_text = any(name in text or (name == "HOME" and "~" in text) for text in texts)
        known = name.isdigit() or name == "@" or name.startswith("--")
        if not in_text and not known and name not in Architecture.model_fields and name != "model":
            words = near(name, Architecture.model_fields)
            hint = f"did you mean {words[0]}?" if words else "name a variable of the script, or a field of the model"
            raise refused(f"--set {name}", "nothing in the file has that name", hint)
