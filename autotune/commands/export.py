"""`moe-autotune export`: writes a recipe, the best one of a study or that of a trial, in another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer

if TYPE_CHECKING:
    from autotune.export.document import Exported
    from autotune.export.source import Source
    from autotune.output import Output

Named = Annotated[
    str | Path,
    Parameter(help="A study's folder (its best recipe), one of its trials as STUDY/NUMBER, a recipe or an example."),
]
Force = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Overwrite an existing file, and export a recipe that is not legal or did not run, with the findings on "
        "top. An input is never overwritten.",
    ),
]


def export(
    source: Named,
    *,
    to: Annotated[
        str,
        Parameter(help="yaml, megatron-lm, megatron-bridge, slurm or pytorchjob; a study also to mlflow or optuna."),
    ],
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="Output file; default stdout.")] = None,
    for_version: Annotated[
        str | None,
        Parameter(
            name="--for",
            help="Version of the target, such as 0.16.1 or head; default the newest.",
        ),
    ] = None,
    tracking: Annotated[
        str | None,
        Parameter(help="With --to mlflow: a folder, database or server; default MLFLOW_TRACKING_URI, then ./mlruns."),
    ] = None,
    force: Force = False,
) -> Answer:
    """Export a recipe in another tool's format, or a study as runs of a tracker."""
    named = str(source)
    if to == "mlflow":
        return _tracked(named, tracking, force)
    from autotune.export import Context, target_named
    from autotune.export.source import input_files, source_at
    from autotune.output import text_at

    file = text_at(output, inputs=input_files(named), force=force)
    if to == "optuna":
        return _study_file(named, file)
    target, found = target_named(to), source_at(named)
    warnings = _warnings(named, found, to, for_version, force=force)
    context = Context(version=for_version, provenance=found.provenance, warnings=warnings, bursts=found.bursts)
    text = target.render(found.recipe, context)
    if file is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        file.write(text)
        print(file.path)
    document: Exported = {
        "schema": 1,
        "to": to,
        "for": for_version,
        "text": text,
        "file": None if output is None else str(output),
        "warnings": warnings,
    }
    return Answer(document=document)


def _tracked(source: str, named: str | None, force: bool) -> Answer:
    """Writes the study and its trials as runs of MLflow."""
    from autotune.export.document import Tracked
    from autotune.looks.working import working
    from autotune.tracking.mlflow import tracking_of, write_runs
    from autotune.tracking.runs import runs_of
    from autotune.tuning.journal import read_study

    runs, tracking = runs_of(read_study(Path(source))), tracking_of(named)
    with working(f"runs are written to {tracking}"):
        run = write_runs(runs, tracking=tracking, folder=Path(source), again=force)
    print(f"run {run} and {len(runs.trials)} trials below it, experiment {runs.experiment}, at {tracking}")
    return Answer(document=Tracked(schema=1, to="mlflow", tracking=tracking, experiment=runs.experiment, run=run))


def _study_file(named: str, file: Output | None) -> Answer:
    """Writes every trial to an Optuna database. Raises BadInputError if `named` is not a study, or no file is named."""
    from autotune.export.document import StudyFile
    from autotune.tracking.optuna_study import write_optuna
    from autotune.tuning.journal import read_study
    from trainer.errors import BadInputError, Problem

    if not Path(named).is_dir():
        raise BadInputError(
            Problem(where=named, what="it is not a study", hint="name the folder of one, with its journal")
        )
    if file is None:
        raise BadInputError(Problem(where="--to optuna", what="it is a database, not text", hint="add -o study.db"))
    history = read_study(Path(named))
    file.make(lambda path: write_optuna(history, path))
    print(file.path)
    return Answer(document=StudyFile(schema=1, to="optuna", trials=len(history.trials), file=str(file.path)))


def _warnings(named: str, found: Source, to: str, version: str | None, *, force: bool) -> tuple[str, ...]:
    """Returns warnings for a recipe that is illegal or failed in a burst.

    Raises BadInputError for it without --force.
    """
    from autotune.export import target_named
    from autotune.export.legal import broken_for, warning_lines
    from trainer.errors import BadInputError, Problem

    broken = broken_for(found.recipe, target_named(to), version)
    said = (*((f"DID NOT RUN: {found.failed}",) if found.failed else ()), *warning_lines(broken))
    if said and not force:
        problems = [
            Problem(where=", ".join(each.knobs) or each.rule, what=f"{each.message} [{each.rule}]", hint=each.hint)
            for each in broken
        ]
        what = found.failed or "not exported: the recipe is not legal there"
        hint = "`moe-autotune check --fix` writes the nearest legal recipe; --force exports this one with the findings"
        raise BadInputError(*problems, Problem(where=named, what=what, hint=hint))
    return said
