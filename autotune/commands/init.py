"""`moe-autotune init`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer


def init(
    *,
    model: Annotated[str, Parameter(help="A model preset.")] = "qwen3-30b-a3b",
    gpu: Annotated[str, Parameter(help="A GPU of the table, or cpu.")] = "h100",
    gpus: Annotated[int, Parameter(validator=Number(gt=0), help="GPUs in all.")] = 8,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="A new file; else stdout.")] = None,
) -> Answer:
    """Write a commented starter recipe."""
    from autotune.init.starter import starter_recipe
    from trainer.errors import BadInputError, Problem

    text = starter_recipe(model=model, gpu=gpu, gpus=gpus)
    if output is None:
        print(text, end="")
        return Answer(document={"schema": 1, "yaml": text, "file": None})
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInputError(
            Problem(where=str(output), what="the file exists", hint="name another one, or move it away")
        ) from None
    print(output)
    return Answer(document={"schema": 1, "yaml": text, "file": str(output)})
