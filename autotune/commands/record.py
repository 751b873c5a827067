"""`moe-autotune record`: records what a launcher would start, for `import`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force
from autotune.commands.import_ import Count


def record(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, help="After --: the launcher, with its arguments.")],
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="Output file; default stdout.")] = None,
    nodes: Annotated[Count, Parameter(help="Number of nodes of the job that the command would run in.")] = None,
    gpus_per_node: Annotated[Count, Parameter(help="GPUs per node of that job.")] = None,
    trust: Annotated[
        bool, Parameter(name="--trust", negative=(), help="Run the command even where the system offers no isolation.")
    ] = False,
    force: Force = False,
) -> Answer:
    """Run a launcher in isolation with every trainer a stub, and write what it would start: a file for import.

    Without a COMMAND: print the variables that make a real start record itself.
    """
    import json

    from autotune.importing.found import ImportOptions
    from autotune.importing.recorded import RecordDocument, written
    from autotune.importing.scripts import MOE_RECORD_HINT, as_submitted, isolated
    from autotune.output import text_at
    from trainer.errors import refused
    from trainer.recording.record import JobCommand
    from trainer.recording.record import record as recorded

    if not command:
        print(MOE_RECORD_HINT)
        inside: RecordDocument = {"schema": 1, "file": None, "recorded": None, "environment": MOE_RECORD_HINT}
        return Answer(document=inside)
    target = text_at(output, inputs=(), force=force)
    options = ImportOptions(
        file=command[0],
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        trust=trust,
        say=lambda line: print(line, file=sys.stderr),
    )
    isolation = isolated(options)
    sizes: dict[str, Any] = {name: size for name, size in (("nodes", nodes), ("gpus_per_node", gpus_per_node)) if size}
    job = JobCommand(argv=command, cwd=os.getcwd(), env=dict(os.environ), **sizes)
    found = recorded(job, isolation)
    if (sized := as_submitted(job, options, found.first["trains"])) != job:
        job, found = sized, recorded(sized, isolation)
    if not found.first["trains"]:
        from autotune.importing.scripts import not_reached

        raise refused(command[0], not_reached(found.first), "MOE_AUTOTUNE_RECORD=FILE records a real start from inside")
    document = written(found, job)
    text = json.dumps(document, indent=1) + "\n"
    if target is None:
        print(text, end="")
    else:
        target.write(text)
        print(f"{target.path}: import it with moe-autotune import {target.path}", file=sys.stderr)
    path = None if target is None else str(target.path)
    made: RecordDocument = {"schema": 1, "file": path, "recorded": document, "environment": None}
    return Answer(document=made)
