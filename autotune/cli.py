"""The program `moe-autotune`: parses arguments, runs a command, and turns its answer into an exit code.

With `--json` stdout carries the JSON document and nothing else: what this program or its child processes print goes to
stderr. Heavy imports are inside functions, and so are imports of this project, which start only after `shadowed` has
checked that they come from one installation.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from autotune.doctor.installation import shadowed
from autotune.looks.letters import use_plain_letters

if TYPE_CHECKING:
    from cyclopts import App

    from autotune.commands import Answer
    from autotune.errors import ErrorDocument, Explained, ProblemWords

JSON = "--json"
SCHEMA = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (see `autotune.exit_codes`)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    atexit.register(gc.freeze)  # else the interpreter's end searches all imports for garbage: 0.2 s of every command
    _open_closed_streams()
    use_plain_letters(sys.stdout, sys.stderr)
    if trouble := shadowed():
        print(trouble, file=sys.stderr)
        return 3
    if JSON not in words:
        return _answered(words)[0]
    code = 0
    try:
        with _stdout_for_the_document() as stdout:
            code, document = _answered(words)
            if document is not None:
                stdout.write(_encoded(document) + "\n")
    except BrokenPipeError:
        return code
    except OSError as error:  # while writing the document; errors inside a command are handled by `_answered`
        return _reported(_explained(error))[0]
    return code


def _open_closed_streams() -> None:
    """Opens /dev/null as stdout or stderr where the shell closed it (`>&-`, `2>&-`)."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def app() -> App:
    """Builds the command-line program: every command, each with the option `--json`."""
    from cyclopts import App, Parameter

    from autotune.commands.bisect import bisect
    from autotune.commands.check import check
    from autotune.commands.compare import compare
    from autotune.commands.completion import completion_of
    from autotune.commands.diagnose import diagnose
    from autotune.commands.doctor import doctor
    from autotune.commands.estimate import estimate
    from autotune.commands.export import export
    from autotune.commands.gap import gap
    from autotune.commands.import_ import import_
    from autotune.commands.init import init
    from autotune.commands.plan import plan
    from autotune.commands.probe import probe
    from autotune.commands.record import record
    from autotune.commands.report import report
    from autotune.commands.run import run
    from autotune.commands.schema import schema
    from autotune.commands.status import status, watch
    from autotune.commands.studies import studies
    from autotune.commands.twin import twin
    from autotune.tuning.environment import version

    program = App(
        name="moe-autotune",
        help="Find the wall in Mixture-of-Experts training on Megatron-Core, and tune the recipe around it.",
        version=version,
        help_flags=["--help", "-h"],
        default_parameter=Parameter(show_default=_shown_default),
        result_action="return_value",
    )
    commands = (
        run,
        status,
        watch,
        studies,
        check,
        estimate,
        plan,
        probe,
        diagnose,
        compare,
        gap,
        bisect,
        twin,
        report,
        record,
        export,
        doctor,
        init,
        schema,
        completion_of(program),
    )
    for command in commands:
        program.command(_with_json(command))
    program.command(_with_json(import_), name="import")
    return program


def _shown_default(value: object) -> object:
    """Returns a default as the help shows it; None, which is not shown, for a switch and for an option without one."""
    return None if value is None or isinstance(value, bool) else value


def _answered(words: Sequence[str]) -> tuple[int, Any]:
    """Runs one command line; returns its exit code and document. Errors go to stderr and become the document."""
    from cyclopts import CycloptsError

    try:
        answer: Answer | None = app()(words, exit_on_error=False, print_error=False, help_on_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _reported(_usage(error, words))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130, None
    except BrokenPipeError:  # the reader of stdout closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0, None
    except Exception as error:
        return _reported(_explained(error))
    return (0, None) if answer is None else (answer.code, answer.document)


def _usage(error: Exception, words: Sequence[str]) -> Explained:
    """Explains why a command line does not parse, with the help to read next."""
    from autotune.errors import Explained
    from autotune.exit_codes import BAD_INPUT
    from trainer.errors import Problem

    command = next((word for word in words if not word.startswith("-")), "")
    named = f"moe-autotune {command}" if command in {*app()} else "moe-autotune"
    dashed_path = next((word for word in words if word.startswith("-") and os.path.exists(word)), None)
    path_hint = f"; a path that starts with - is written ./{dashed_path}" if dashed_path else ""
    problem = Problem(where=named, what=_lacking(error) or str(error).rstrip(), hint=f"see `{named} --help`{path_hint}")
    return Explained(code=BAD_INPUT, problems=(problem,))


def _lacking(error: Exception) -> str | None:
    """Returns `RECIPE is missing` for a missing argument (an option by its name); None for any other error."""
    from cyclopts import MissingArgumentError

    if not isinstance(error, MissingArgumentError) or error.argument is None or error.keyword is not None:
        return None
    name = error.argument.name
    return f"{name if error.argument.index is None else name.removeprefix('--').upper()} is missing"


def _explained(error: Exception) -> Explained:
    from autotune.errors import Explained, explain
    from autotune.exit_codes import TOOL_FAILED
    from trainer.errors import Problem

    if known := explain(error):
        return known
    import traceback

    from trainer.secrets import masked

    print(masked(traceback.format_exc()), file=sys.stderr, end="")
    problem = Problem(
        where="moe-autotune", what=f"{type(error).__name__}: {error}", hint="internal error: please report it"
    )
    return Explained(code=TOOL_FAILED, problems=(problem,))


def _reported(explained: Explained) -> tuple[int, Any]:
    """Prints the problems to stderr; returns the exit code and the error document, both with secrets masked."""
    from trainer.secrets import masked

    with suppress(BrokenPipeError):  # the reader of stderr is gone; the exit code and the document remain
        for problem in explained.problems:
            print(masked(str(problem)), file=sys.stderr)
    problems: list[ProblemWords] = [
        {"where": masked(problem.where), "what": masked(problem.what), "hint": masked(problem.hint)}
        for problem in explained.problems
    ]
    document: ErrorDocument = {"schema": SCHEMA, "error": {"code": explained.code, "problems": problems}}
    return explained.code, document


def _encoded(document: Any) -> str:
    if isinstance(document, dict) and "error" in document:
        return json.dumps(document)
    import msgspec

    return msgspec.json.encode(document).decode()


@lru_cache(maxsize=64)  # signatures take long to read, and a program may run many commands
def _with_json(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """Adds the option `--json` to a command; `main` has read it before the command is parsed."""
    from cyclopts import Parameter

    option = Annotated[
        bool, Parameter(name=JSON, negative=(), help="One JSON document on stdout, everything else on stderr.")
    ]

    @wraps(command)
    def parsed(*args: Any, json: bool = False, **options: Any) -> Answer:
        return command(*args, **options)

    signature = inspect.signature(command, eval_str=True)
    flag = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
    parameters = [*signature.parameters.values(), flag]
    parsed.__signature__ = signature.replace(parameters=parameters)  # pyrefly: ignore[missing-attribute]
    parsed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return parsed


@contextmanager
def _stdout_for_the_document() -> Iterator[TextIO]:
    """Yields the real stdout; inside, everything else that is printed, also by child processes, goes to stderr."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stdout:
        python_stdout, sys.stdout = sys.stdout, sys.stderr
        os.dup2(2, 1)
        try:
            yield stdout
        finally:
            stdout.flush()
            os.dup2(stdout.fileno(), 1)
            sys.stdout = python_stdout


if __name__ == "__main__":
    sys.exit(main())
