"""`moe-autotune twin`: writes what a study learned about its cluster to a machine file for estimates, plans and
simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force, StudyFolder

MachineOut = Annotated[
    Path | None, Parameter(name=("--output", "-o"), help="The machine file to write; default stdout.")
]


def twin(study: StudyFolder, *, output: MachineOut = None, force: Force = False) -> Answer:
    """Write a machine file of the cluster that a study ran on: for estimates, plans and simulations without it."""
    from autotune.looks.working import working
    from autotune.output import text_at
    from autotune.twin.document import show_twin, twin_document
    from autotune.twin.learning import twin_of_study
    from autotune.twin.written import twin_text

    folder = Path(study)
    target = text_at(output, inputs=(), force=force)
    with working("simulating the study's recipes on simulated machines"):
        made = twin_of_study(folder, name=output.stem if output else folder.resolve().name)
    text = twin_text(made)
    if target is None:
        print(text, end="")
    else:
        target.write(text)
        show_twin(made, file=str(target.path))
    return Answer(document=twin_document(made, text=text, file=None if target is None else str(target.path)))
