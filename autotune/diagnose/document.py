"""The JSON documents of `diagnose --json`: the analysis with what to try next, or the page of a fix."""

from __future__ import annotations

from typing import TypedDict

from analyzers.diagnosis import Analysis
from autotune.diagnose.next_steps import NextSteps


class Diagnosed(Analysis, frozen=True, kw_only=True):
    """The traces of one job: the partition of every step of every rank, the walls, and what to try next. All times are
    microseconds."""

    next: NextSteps


class FixPage(TypedDict):
    """A fix: what it is, how it shows, what it costs, when it does not apply, its source."""

    name: str
    title: str
    page: tuple[str, ...]  # paragraphs


class FixDocument(TypedDict):
    """Document of `diagnose --explain FIX --json`."""

    schema: int
    fix: FixPage


def diagnosed(analysis: Analysis, steps: NextSteps) -> Diagnosed:
    return Diagnosed(**{field: getattr(analysis, field) for field in analysis.__struct_fields__}, next=steps)
