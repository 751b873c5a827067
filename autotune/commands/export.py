"""`moe-autotune export`: a recipe, or the best one of a study, in another tool's words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force

if TYPE_CHECKING:
    from trainer.recipe import Recipe

Source = Annotated[str, Parameter(help="A study's folder (its best recipe), a recipe file or a packaged example.")]


def export(
    source: Source,
    *,
    to: Annotated[str, Parameter(help="yaml, megatron-lm, megatron-bridge or slurm.")],
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="A file; else stdout.")] = None,
    force: Force = False,
) -> Answer:
    """Write a recipe in another tool's words."""
    from autotune.export import export as rendered
    from autotune.output import text_at

    target = text_at(output, inputs=_read_for(source), force=force)
    text = rendered(_recipe(source), to)
    if target is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        target.write(text)
        print(target.path)
    return Answer(document={"schema": 1, "to": to, "text": text, "file": None if output is None else str(output)})


def _read_for(source: str) -> tuple[Path, ...]:
    from autotune.tuning.study import originals
    from trainer.recipe.source import source_file

    return originals(Path(source)) if Path(source).is_dir() else (source_file(source),)


def _recipe(source: str) -> Recipe:
    from autotune.tuning.journal import read_study
    from trainer.errors import BadInputError, Problem
    from trainer.recipe import load_recipe

    if not Path(source).is_dir():
        return load_recipe(source)
    best = read_study(Path(source)).best
    if best is None:
        raise BadInputError(
            Problem(where=source, what="no recipe of this study ran", hint="its report says what was tried")
        )
    return best.recipe
