"""The shell script that every rank runs before the trainer's command: the lines of `trainer.setup`, then the recipe's
variables, as in the exported script. A rank records which line it is at: a failure in one of them is caused by the
machine or by the line, not by the recipe's knobs."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.errors import ToolError
from trainer.launch_scripts.login import FIRST_LINE, is_login
from trainer.launch_scripts.variables import export_line
from trainer.launchers.mailbox import tail
from trainer.secrets import masked

_DONE = "done"
_NOT_FOUND = 127  # a shell's exit code for an unknown command
_LONGEST = 300  # most characters of a line's own output in a message
_SAY = 'moe_autotune_at() { printf "%s\\n" "$*" > "$MOE_AUTOTUNE_OUT/rank$RANK.setup"; }'


def start_of(lines: tuple[str, ...], script: Path) -> tuple[str, ...]:
    """Returns the words before the trainer's command: the shell and the script."""
    return ("bash", *(("-l",) if is_login(lines[0]) else ()), str(script))


def script_of(lines: tuple[str, ...], variables: Mapping[str, str], *, pythonpath: str, injected: Path | None) -> str:
    """Returns the script for bash.

    `pythonpath` is that of the process that started the study and replaces the current one; `injected` is put before
    the PYTHONPATH that the lines set.
    """
    text = [
        lines[0] if is_login(lines[0]) else FIRST_LINE,
        "# What every rank does before the trainer's command: trainer.setup, then the recipe's variables.",
        _SAY,
        "unset PYTHONSAFEPATH",
        f"export PYTHONPATH={shlex.quote(pythonpath)}" if pythonpath else "unset PYTHONPATH",
        *_checked(lines),
        *(export_line(name, value) for name, value in variables.items()),
        *([f"export PYTHONPATH={shlex.quote(str(injected))}${{PYTHONPATH:+:$PYTHONPATH}}"] if injected else []),
        f"moe_autotune_at {_DONE}",
        "unset -f moe_autotune_at",
        'exec "$@"',
    ]
    return "\n".join(text) + "\n"


def _checked(lines: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines, each with a check of its exit code.

    They run in the shell itself, not in a function, since a line may declare something that later ones use.
    """
    for number, line in enumerate(lines):
        yield f"moe_autotune_at {number}"
        yield line
        yield f'moe_autotune_code=$?; [ "$moe_autotune_code" = 0 ] || {{ moe_autotune_at {number} "$moe_autotune_code"'
        yield 'exit "$moe_autotune_code"; }'


@dataclass(frozen=True, kw_only=True)
class NotPrepared:
    """A rank that did not complete its setup.

    `code`: the exit code of the line, None if it did not end; `others`: another rank completed it, so that one machine
    is at fault.
    """

    rank: int
    line: str
    code: int | None
    ending: str
    others: bool

    def failure(self) -> Failure:
        return Failure(
            kind=FailureKind.INFRASTRUCTURE, phase=BurstPhase.START, rank=self.rank, evidence=masked(self._last_line)
        )

    def error(self) -> ToolError:
        unknown = "a login shell may know it: write '#!/bin/bash -l' as the first line of trainer.setup; "
        return ToolError(
            masked(f"{self._last_line}; no rank got further, and nothing was learned about the recipe"),
            hint=(unknown if self.code == _NOT_FOUND else "")
            + "fix the line, or add `|| true` to it if it may fail, and start a new study; "
            "if the machine is at fault, fix it and continue with --resume",
        )

    @property
    def _last_line(self) -> str:
        return f"trainer.setup: `{self.line}` {self.ending}"


def not_prepared(
    lines: tuple[str, ...],
    ranks_folder: Path,
    *,
    ranks: int,
    deaths: Mapping[int, int],
    outputs: Callable[[int], list[Path]],
    overdue_s: float | None,
) -> NotPrepared | None:
    """Returns the first rank that did not complete its setup, once all ranks have ended; None if all did, or were ended
    by us. `deaths`: exit codes by rank; `outputs`: the files with a rank's output; `overdue_s`: the time limit that
    passed."""
    states = {rank: _state(ranks_folder, rank) for rank in range(ranks)}
    for rank, state in states.items():
        number, _, code = state.partition(" ")
        if not number.isdigit():
            continue
        ended = int(code) if code else deaths.get(rank)
        if not code and overdue_s is not None:
            ended, ending = None, f"did not end within {overdue_s:g} s"
        elif ended is None or ended == -signal.SIGTERM:
            continue  # the line was still running when its rank was ended
        else:
            how = f"ended with {ended}" if ended >= 0 else f"was killed by {signal.Signals(-ended).name}"
            ending = how + _last_words(outputs(rank))
        others = _DONE in states.values()
        return NotPrepared(rank=rank, line=lines[int(number)], code=ended, ending=ending, others=others)
    return None


def _state(ranks_folder: Path, rank: int) -> str:
    """Returns the number of the line that the rank is at, and the exit code with which it failed; empty before the
    first line."""
    try:
        return (ranks_folder / f"rank{rank}.setup").read_text().strip()
    except FileNotFoundError:
        return ""


def _last_words(outputs: list[Path]) -> str:
    lines = [line.strip() for path in outputs for line in tail(path).splitlines() if line.strip()]
    return f": {lines[-1][:_LONGEST]}" if lines else ""
