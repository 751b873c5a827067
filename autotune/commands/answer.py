"""The return value of a command, and the parameters that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from autotune.exit_codes import DONE, NO_RECIPE

__all__ = [
    "DONE",
    "NO_RECIPE",
    "Answer",
    "Force",
    "MachineName",
    "PageFile",
    "Price",
    "RecipeName",
    "StudyFolder",
    "whole",
]


def whole(_: Any, tokens: Sequence[Token]) -> int:
    """Parses a whole number; raises ValueError for 1.5, which is not truncated to 1."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


# Text as typed; the type includes Path so that shells complete file names
RecipeName = Annotated[str | Path, Parameter(help="A recipe file, or the name of a packaged example.")]
PageFile = Annotated[Path | None, Parameter(name="--html", help="Also write a page to this file.")]
Force = Annotated[bool, Parameter(negative=(), help="Overwrite an existing file. An input is never overwritten.")]
Price = Annotated[
    float | None,
    Parameter(validator=Number(gt=0, lte=1e6), help="What a GPU-hour costs, in any currency: for the report."),
]
# A file's path, or the name of a packaged machine
MachineName = Annotated[
    str | None,
    Parameter(
        name="--machine", help="A machine file with what was learned of a cluster (`twin`), instead of the tables."
    ),
]
StudyFolder = Annotated[str | Path, Parameter(help="The folder of a study or of a bisection.")]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Exit code and, for `--json`, the document (anything msgspec can encode)."""

    code: int = DONE
    document: Any
