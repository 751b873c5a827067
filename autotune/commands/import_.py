"""`moe-autotune import`: makes a recipe from a launch script, arguments, a log or a configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer, Force, whole

FILE = "A bash launch script, a list of Megatron-LM's arguments, its log, a Megatron-Bridge or Hugging Face config."
GPU_HELP = "A GPU of the table, cpu, or figures ({name: …} or a YAML file of them), if the file does not say."
Count = Annotated[int | None, Parameter(converter=whole, validator=Number(gt=0))]


def import_(
    file: Annotated[str | Path, Parameter(help=FILE)],
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="Output file; default stdout.")] = None,
    gpu: Annotated[str | None, Parameter(help=GPU_HELP)] = None,
    nodes: Annotated[Count, Parameter(help="Number of nodes; overrides the file.")] = None,
    gpus_per_node: Annotated[Count, Parameter(help="GPUs per node; overrides the file.")] = None,
    set_: Annotated[
        list[str] | None,
        Parameter(name="--set", negative=(), help="NAME=VALUE: a variable of the script, or a field of the model."),
    ] = None,
    vocab_size: Annotated[
        Count, Parameter(help="Size of the vocabulary, if neither the file nor a tokenizer says.")
    ] = None,
    name: Annotated[str | None, Parameter(help="The recipe's name; default the file's.")] = None,
    env: Annotated[
        list[str] | None,
        Parameter(name="--env", negative=(), help="A variable of yours that the script sees; ALL: all of them."),
    ] = None,
    exists: Annotated[
        list[str] | None,
        Parameter(name="--exists", negative=(), help="A file that the script should find, even if it is not here."),
    ] = None,
    absent: Annotated[
        list[str] | None,
        Parameter(name="--absent", negative=(), help="A file that the script should not find, even if it is here."),
    ] = None,
    cwd: Annotated[Path | None, Parameter(help="The folder that the script is started in; default its own.")] = None,
    trust: Annotated[
        bool, Parameter(name="--trust", negative=(), help="Run the script even where the system offers no isolation.")
    ] = False,
    force: Force = False,
) -> Answer:
    """Make a recipe from a launch script, arguments, a log or a configuration. A script is run in isolation, with every
    launcher a stub."""
    from rich.console import Console

    from autotune.importing.account import document, header, show, yaml_of
    from autotune.importing.found import ImportOptions
    from autotune.importing.reading import imported
    from autotune.looks.wrapping import plain_console
    from autotune.output import text_at

    target = text_at(output, inputs=(Path(file),), force=force)
    options = ImportOptions(
        file=str(file),
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        given=_given(set_ or []) | ({} if vocab_size is None else {"vocab_size": str(vocab_size)}),
        name=name,
        env=tuple(env or ()),
        exists=tuple(os.path.abspath(path) + "/" * path.endswith("/") for path in exists or ()),
        absent=tuple(map(os.path.abspath, absent or ())),
        cwd=None if cwd is None else str(cwd.resolve()),
        trust=trust,
        say=lambda line: print(line, file=sys.stderr),
    )
    found = imported(options)
    text = header(found, name=Path(file).name) + yaml_of(found.recipe)
    console = plain_console()
    if target is None:
        print(text, end="")
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    else:
        target.write(text)
    show(console, found, name=Path(file).name)
    if target is not None:
        console.print(f"{target.path}: review it, then run moe-autotune check {target.path}", soft_wrap=True)
    return Answer(document=document(found, text=text, file=None if target is None else str(target.path)))


def _given(words: list[str]) -> dict[str, str]:
    """Parses NAME=VALUE arguments. Raises BadInputError for any other."""
    from trainer.errors import BadInputError, Problem

    wrong = [word for word in words if "=" not in word.lstrip("=")]
    if wrong:
        problems = [Problem(where=f"--set {word}", what="it has no value", hint="--set NAME=VALUE") for word in wrong]
        raise BadInputError(*problems)
    return {name: value for name, _, value in (word.partition("=") for word in words)}
