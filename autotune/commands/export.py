"""`moe-autotune export`: a recipe, or the best one of a study, in another tool's words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force

if TYPE_CHECKING:
    from autotune.export import Provenance
    from trainer.recipe import Recipe

Source = Annotated[str, Parameter(help="A study's folder (its best recipe), a recipe file or a packaged example.")]


def export(
    source: Source,
    *,
    to: Annotated[
        str, Parameter(help="yaml, megatron-lm, megatron-bridge, slurm or pytorchjob; a study also to mlflow.")
    ],
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="A file; else stdout.")] = None,
    for_version: Annotated[
        str | None,
        Parameter(
            name="--for",
            help="The version of the tool, such as 0.16.1 or head; else the newest.",
        ),
    ] = None,
    tracking: Annotated[
        str | None,
        Parameter(help="Of mlflow: a folder, a database or a server; else MLFLOW_TRACKING_URI, else mlruns here."),
    ] = None,
    force: Force = False,
) -> Answer:
    """Write a recipe in another tool's words, or a study as the runs of a tracker."""
    if to == "mlflow":
        return _tracked(source, tracking, force)
    from autotune.export import Context
    from autotune.export import export as rendered
    from autotune.output import text_at

    target = text_at(output, inputs=_read_for(source), force=force)
    recipe, provenance = _found(source)
    text = rendered(recipe, to, Context(version=for_version, provenance=provenance))
    if target is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        target.write(text)
        print(target.path)
    return Answer(
        document={
            "schema": 1,
            "to": to,
            "for": for_version,
            "text": text,
            "file": None if output is None else str(output),
        }
    )


def _tracked(source: str, named: str | None, force: bool) -> Answer:
    """The study and its trials as runs of MLflow."""
    from autotune.tracking.mlflow import tracking_of, write_runs
    from autotune.tracking.runs import runs_of
    from autotune.tuning.journal import read_study

    runs, tracking = runs_of(read_study(Path(source))), tracking_of(named)
    run = write_runs(runs, tracking=tracking, folder=Path(source), again=force)
    print(f"run {run} and {len(runs.trials)} trials below it, experiment {runs.experiment}, at {tracking}")
    document = {"schema": 1, "to": "mlflow", "tracking": tracking, "experiment": runs.experiment, "run": run}
    return Answer(document=document)


def _read_for(source: str) -> tuple[Path, ...]:
    from autotune.tuning.study import originals
    from trainer.recipe.source import source_file

    return originals(Path(source)) if Path(source).is_dir() else (source_file(source),)


def _found(source: str) -> tuple[Recipe, Provenance]:
    """The recipe, and where it comes from."""
    from autotune.export import Provenance
    from trainer.recipe import load_recipe

    if not Path(source).is_dir():
        recipe = load_recipe(source)
        return recipe, Provenance(source=recipe.name)
    return _best_of(source)


def _best_of(source: str) -> tuple[Recipe, Provenance]:
    """The best recipe of a study's folder. BadInputError where none ran."""
    from datetime import UTC, datetime

    from autotune.export import Provenance
    from autotune.report.document import document_of
    from autotune.tuning.environment import PACKAGES
    from autotune.tuning.journal import read_study
    from trainer.errors import BadInputError, Problem

    history = read_study(Path(source))
    best, document = history.best, document_of(history)
    if best is None or history.study is None:
        raise BadInputError(
            Problem(where=source, what="no recipe of this study ran", hint="its report says what was tried")
        )
    return best.recipe, Provenance(
        source=source,
        study=document.study,
        trial=best.number,
        gain=document.speedup,
        simulated=document.simulated,
        date=datetime.fromtimestamp(history.study.at, tz=UTC).date().isoformat(),
        versions={name: document.environment[name] for name in PACKAGES if name in document.environment},
    )
