"""Tables under test: one test checks every row and reports all rows that fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

Row = TypeVar("Row")


def filled(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows for a loop or an `all(…)` that asserts something of each; fails where there is none."""
    table = list(rows)
    assert table, "there is nothing to loop over"
    return table


def for_every_row(rows: Iterable[Any], *, name: Callable[[Any], str] = str) -> Callable[[Any], Callable[..., None]]:
    """Returns a decorator that calls a test with each row as its first argument; further arguments are fixtures.

    Raises an ExceptionGroup of the failures, each with the name of its row; an empty table fails as well. The rows
    share the fixtures: where each needs its own (a folder, a patched module), parametrize instead.
    """
    table = list(rows)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def check_rows(**fixtures: Any) -> None:
            assert table, "the table has no rows"
            failures = [failure for row in table if (failure := _failure(test, row, name(row), fixtures)) is not None]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(table)} rows fail", failures)

        _, *others = inspect.signature(test).parameters.values()
        check_rows.__signature__ = inspect.Signature(others)  # pyrefly: ignore[missing-attribute]
        return check_rows

    return decorate


def _failure(test: Callable[..., None], row: object, name: str, fixtures: dict[str, Any]) -> Exception | None:
    try:
        test(row, **fixtures)
    except Exception as failure:
        failure.add_note(f"row: {name}")
        return failure
    return None
