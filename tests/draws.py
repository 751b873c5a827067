"""Draws of random cases: a few are tried by `make test`, all of them by it and `make test-full` together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], count: int, *, later: pytest.MarkDecorator = pytest.mark.thorough) -> list[Any]:
    """Returns the cases as parameters of a test, all but the first `count` of them marked `later`."""
    rows = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*row, marks=[later] * (number >= count)) for number, row in enumerate(rows)]
