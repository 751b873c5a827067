"""Draws bars of steps for every page: one segment per kind of time, in the colour of the wall it is lost to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from analyzers.diagnosis import Partition
from autotune.looks.quantities import duration
from autotune.looks.segments import KINDS, Segment, segments
from autotune.looks.stacks import Piece, Stack, bar, legend


def step_bar(parts: Sequence[Segment], longest: float, label: str) -> Markup:
    """Draws a label and the stacked bar below it; `longest` is the time that fills the width."""
    return bar(Stack(label=label, pieces=tuple(map(_piece, parts))), longest=longest)


def steps_legend(steps: Iterable[Partition]) -> Markup:
    """Draws the legend of the segments that occur in any of the steps, in drawing order."""
    seen = {segment.kind.key for step in steps for segment in segments(step)}
    return legend(Piece(key=kind.key, words=kind.words, value=1.0, text="") for kind in KINDS if kind.key in seen)


def _piece(part: Segment) -> Piece:
    return Piece(key=part.kind.key, words=part.kind.words, value=part.us, text=duration(part.us))
