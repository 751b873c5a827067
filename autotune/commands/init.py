"""`moe-autotune init`: writes a commented recipe to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import DONE, NO_RECIPE, Answer, Force, MachineName, whole


def init(
    *,
    model: Annotated[
        str, Parameter(help="A model preset, or the path of a Hugging Face config.json.")
    ] = "qwen3-30b-a3b",
    gpu: Annotated[str, Parameter(help="A GPU of the table, or cpu.")] = "h100",
    gpus: Annotated[
        int, Parameter(converter=whole, validator=Number(gt=0, lte=2**20), help="Total number of GPUs.")
    ] = 8,
    machine: MachineName = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="Output file; default stdout.")] = None,
    force: Force = False,
) -> Answer:
    """Write a commented starter recipe: the first choice of `plan` for this model and cluster."""
    from autotune.estimate.machine import chosen_machine
    from autotune.init.starter import InitDocument, starter
    from autotune.looks.working import working
    from autotune.output import text_at

    target = text_at(output, inputs=(), force=force)
    chosen = chosen_machine(machine, gpu=gpu)
    with working("looking for a layout to start with"):
        made = starter(model=model, gpu=gpu, gpus=gpus, machine=chosen)
    if target is None:
        print(made.text, end="")
    else:
        target.write(made.text)
        print(target.path)
    if made.unfit:
        print(made.unfit, file=sys.stderr)
    return Answer(
        code=NO_RECIPE if made.unfit else DONE,
        document=InitDocument(
            schema=1, yaml=made.text, file=None if target is None else str(target.path), unfit=made.unfit
        ),
    )
