"""`moe-autotune completion`: prints the completion script of a shell, for commands, options and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer
from autotune.schemas.plain import CompletionDocument, Shell

if TYPE_CHECKING:
    from cyclopts import App


# The generated script works only in a file named _moe-autotune; with this also in any file, by `source` and by `eval`
ZSH_BY_ANY_WAY = """
if [[ ${funcstack[1]} == _*moe-autotune ]]; then
  _cyclopts_moe-autotune "$@"
elif (( $+functions[compdef] )); then
  compdef _cyclopts_moe-autotune moe-autotune
fi
"""


def completion_of(program: App) -> Callable[..., Answer]:
    """Returns the command `completion` of a program, which lists the program's commands when it is run."""

    def completion(
        shell: Annotated[Shell | None, Parameter(help="bash, zsh or fish; default the current shell.")] = None,
        *,
        install: Annotated[
            bool, Parameter(negative=(), help="Install it for the shell, startup file included.")
        ] = False,
    ) -> Answer:
        """Print the completion script of a shell, or install it."""
        chosen = shell or _shell()
        script = program.generate_completion(shell=chosen) + (ZSH_BY_ANY_WAY if chosen == "zsh" else "")
        path = program.install_completion(shell=chosen) if install else None
        print(script if path is None else f"{path}: start a new {chosen} to use it\n", end="")
        file = None if path is None else str(path)
        return Answer(document=CompletionDocument(schema=1, shell=chosen, script=script, file=file))

    return completion


def _shell() -> Shell:
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from trainer.errors import BadInputError, Problem

    try:
        found = detect_shell()
    except ShellDetectionError:
        found = None
    if found is None or found == "powershell":
        what = "the current shell is not known" if found is None else f"there is none for {found}"
        raise BadInputError(Problem(where="moe-autotune completion", what=what, hint="name bash, zsh or fish"))
    return found
