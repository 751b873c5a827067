"""The documents of `export --json`: a recipe's text, a study as runs of a tracker, or its trials in an Optuna
database."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

# in functional syntax because `for` is a Python keyword
_Asked = TypedDict(
    "_Asked", {"for": Annotated[str | None, msgspec.Meta(description="the version that --for named; null: the newest")]}
)


class Exported(_Asked):
    """A recipe in another tool's format."""

    schema: int
    to: str
    text: str
    file: str | None  # the file that -o wrote; null: stdout
    warnings: tuple[str, ...]  # comments at the top of the text: that the recipe did not run, rules that it breaks


class Tracked(TypedDict):
    """A study as runs of MLflow."""

    schema: int
    to: str
    tracking: str  # the folder, database or server
    experiment: str
    run: str  # id of the study's run; the trials are its child runs


class StudyFile(TypedDict):
    """A study's trials in a database that Optuna opens."""

    schema: int
    to: str
    trials: int
    file: str
