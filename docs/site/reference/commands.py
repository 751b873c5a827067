"""A page for each command, made from the command-line definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.cli import app
from docs.site.page import Page, code, table


def pages() -> Iterator[Page]:
    program = app()
    names = [name for name in program if not name.startswith("-")]
    rows = [(f"[{name}]({name}.html)", _one_line(_doc(program[name]))) for name in names]
    said = (
        "# Commands\n\nEvery command takes `--json` (one JSON document on stdout, all else on stderr) and `--help`. "
        "For what they return see [exit codes and JSON](../outputs.html).\n\n"
    )
    yield Page(path="commands/index.html", title="Commands", markdown=said + table(("command", "does"), rows),
               group="Reference")  # fmt: skip
    for name in names:
        yield Page(path=f"commands/{name}.html", title=name, markdown=_page(name, program[name]), group="Reference",
                   listed=False)  # fmt: skip


def _page(name: str, command: Any) -> str:
    arguments = [each for each in command.assemble_argument_collection() if each.parameter.show is not False]
    given = [each for each in arguments if each.field_info.kind is not each.field_info.KEYWORD_ONLY]
    options = [each for each in arguments if each not in given]
    usage = " ".join(["moe-autotune", name, *(_place(each) for each in given), "[options]"])
    parts = [f"# moe-autotune {name}\n\n{' '.join(_doc(command).split())}\n\n```\n{usage}\n```\n"]
    for title, some in (("Arguments", given), ("Options", options)):
        if some:
            rows = [(_names(each), each.parameter.help or "", _default(each)) for each in some]
            parts.append(f"\n## {title}\n\n{table(('name', 'what', 'default'), rows)}\n")
    return "".join(parts)


def _names(argument: Any) -> str:
    positional = argument.field_info.kind is not argument.field_info.KEYWORD_ONLY
    return code(_word(argument)) if positional else " ".join(map(code, argument.names))


def _place(argument: Any) -> str:
    many = argument.field_info.kind is argument.field_info.VAR_POSITIONAL
    word = _word(argument) + ("…" if many else "")
    return word if argument.required else f"[{word}]"


def _word(argument: Any) -> str:
    """Returns a positional argument's name as shown in usage: `RECIPE`."""
    return str(argument.name).lstrip("-").partition(".")[0].upper()


def _doc(command: Any) -> str:
    return str(command.help or "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _default(argument: Any) -> str:
    default = argument.field_info.default
    if argument.required:
        return "needed"
    return "" if default in (None, False, ()) or default is argument.field_info.empty else code(default)
