"""What a command gives back, and the parameters that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

DONE = 0
NO_RECIPE = 1  # ended without a recipe that runs, or `check` found problems
BAD_INPUT = 2
TOOL_FAILED = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells say it

RecipeName = Annotated[str, Parameter(help="A recipe file, or the name of a packaged example.")]
PageFile = Annotated[Path | None, Parameter(name="--html", help="Also write a page to this file.")]
Force = Annotated[
    bool, Parameter(negative=(), help="Replace a file that exists. What the command reads is never replaced.")
]
StudyFolder = Annotated[str, Parameter(help="A folder that `moe-autotune run` made.")]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Exit code and, for `--json`, the document (anything msgspec can encode)."""

    code: int = DONE
    document: Any
