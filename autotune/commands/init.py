"""`moe-autotune init`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer, Force


def init(
    *,
    model: Annotated[
        str, Parameter(help="A model preset, or the path of a Hugging Face config.json.")
    ] = "qwen3-30b-a3b",
    gpu: Annotated[str, Parameter(help="A GPU of the table, or cpu.")] = "h100",
    gpus: Annotated[int, Parameter(validator=Number(gt=0), help="GPUs in all.")] = 8,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="A file; else stdout.")] = None,
    force: Force = False,
) -> Answer:
    """Write a commented starter recipe."""
    from autotune.init.starter import starter_recipe
    from autotune.output import text_at

    target = text_at(output, inputs=(), force=force)
    text = starter_recipe(model=model, gpu=gpu, gpus=gpus)
    if target is None:
        print(text, end="")
    else:
        target.write(text)
        print(target.path)
    return Answer(document={"schema": 1, "yaml": text, "file": None if target is None else str(target.path)})
