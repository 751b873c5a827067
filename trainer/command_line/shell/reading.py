"""A script read from top to bottom, as bash would run it, without running anything.

Assignments fill the scope; decided branches are taken; commands are collected with the environment they would see.
What cannot be decided is noted, and what it would have set becomes a gap.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from trainer.command_line.shell.branches import BRANCHES
from trainer.command_line.shell.launches import LAUNCHES
from trainer.command_line.shell.loops import ARGUMENTS
from trainer.command_line.shell.scope import Scope
from trainer.command_line.shell.script import Script, headers_of, slurm_variables
from trainer.command_line.shell.state import ReadBeside, Reading
from trainer.command_line.shell.statements import STATEMENTS
from trainer.command_line.shell.texts import printed
from trainer.command_line.shell.words import plain

NO_ARGUMENTS = "the script's arguments ($@) are not known: taken as empty"


def read_script(
    text: str,
    *,
    given: Mapping[str, str] | None = None,
    beside: ReadBeside = lambda name: None,
    path: str | None = None,
) -> Script:
    """What a bash script would start. `given`: values of `--set`, of which `@` is what the script is started with;
    `beside`: the text of a file named in it, or None; `path`: the script's own, absolute."""
    scope = Scope(given={name: value for name, value in (given or {}).items() if name != ARGUMENTS}, path=path)
    if given and ARGUMENTS in given:
        scope.positional = tuple(plain(word).values[0] for word in shlex.split(given[ARGUMENTS]))
    headers = headers_of(text)
    for name, value in slurm_variables(headers).items():
        scope.variables[name] = plain(value)
    reading = Reading(scope=scope, beside=beside, handlers={**BRANCHES, **STATEMENTS, **LAUNCHES}, substitution=printed)
    reading.read(text)
    for name, line in scope.notes.items():
        reading.note(line, NO_ARGUMENTS if name in "@*" else f"${name} is not set in the script: taken as empty")
    return Script(
        commands=tuple(reading.commands),
        notes=tuple(reading.notes),
        headers=headers or reading.headers,
    )
