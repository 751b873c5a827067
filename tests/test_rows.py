"""The loop over the rows of a table: every failing row is reported, and an empty table fails."""

from __future__ import annotations

import inspect

import pytest

from tests.rows import for_every_row


def test_all_failing_rows_are_reported_by_name() -> None:
    @for_every_row([2, 3, 4, 5], name=lambda row: f"number {row}")
    def even(row: int) -> None:
        assert row % 2 == 0

    with pytest.raises(ExceptionGroup, match="2 of 4 rows fail") as caught:
        even()
    assert [failure.__notes__ for failure in caught.value.exceptions] == [["row: number 3"], ["row: number 5"]]


def test_an_empty_table_fails() -> None:
    @for_every_row([])
    def anything(row: object) -> None:
        pass

    with pytest.raises(AssertionError, match="no rows"):
        anything()


def test_the_row_is_no_fixture_and_the_other_arguments_are() -> None:
    @for_every_row([1])
    def with_a_folder(row: int, tmp_path: object) -> None:
        assert tmp_path == "folder"

    assert list(inspect.signature(with_a_folder).parameters) == ["tmp_path"]
    with_a_folder(tmp_path="folder")


def test_a_skip_is_no_failure_of_a_row() -> None:
    @for_every_row([1])
    def skipped(row: int) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        skipped()
