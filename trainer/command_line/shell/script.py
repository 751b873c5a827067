"""What a script would start, and what its header asks Slurm for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.command_line.launchers import slurm_sizes
from trainer.command_line.shell.words import Word


class TooMuchError(Exception):
    """A script that would be read without end, or holds what no script does."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that the script would start. `sure` is false inside a branch that could not be decided; `setup`: the
    commands before it that prepare the shell itself, such as conda activate and module load, as text."""

    line: int
    words: tuple[Word, ...]
    env: Mapping[str, Word]
    sure: bool = True
    setup: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()  # lines of the kind that a container, or another machine, does not have


@dataclass(frozen=True, kw_only=True)
class Script:
    commands: tuple[Command, ...]
    notes: tuple[tuple[int, str], ...]  # line, what was not followed or taken for granted
    headers: tuple[str, ...] = ()  # words of the #SBATCH lines

    def notes_in_order(self) -> list[str]:
        return [f"line {line}: {what}" for line, what in sorted(set(self.notes))]


def headers_of(text: str) -> tuple[str, ...]:
    """Words of the #SBATCH lines, which stand before the first command."""
    words: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if match := re.match(r"#SBATCH\s+(.*)", line):
            words += re.sub(r"\s#.*", "", match[1]).split()
    return tuple(words)


def slurm_variables(headers: tuple[str, ...]) -> dict[str, str]:
    """What Slurm sets from the header that scripts count with."""
    sizes = slurm_sizes(headers)
    names = {
        "SLURM_NNODES": sizes.nodes,
        "SLURM_JOB_NUM_NODES": sizes.nodes,
        "SLURM_GPUS_ON_NODE": sizes.gpus_per_node,
        "SLURM_GPUS_PER_NODE": sizes.gpus_per_node,
        "SLURM_NTASKS_PER_NODE": sizes.tasks_per_node,
        "SLURM_NTASKS": sizes.tasks,
    }
    return {name: str(value) for name, value in names.items() if value is not None}
