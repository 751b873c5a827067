"""No test can pass without asserting anything, and the checker that says so finds those that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.assertions import unsure_tests
from tests.places import ROOT

SURE = {
    "an assertion": "assert f()",
    "a loop over what is written out": "for row in [1, 2]:\n        assert row",
    "a loop over a table written out": "for row in TABLE:\n        assert row",
    "a loop over what is checked not to be empty": "for row in filled(f()):\n        assert row",
    "both branches": "if f():\n        assert 1\n    else:\n        assert 2",
    "what pytest checks": "with pytest.raises(KeyError):\n        f()",
    "a helper": "check(f())",
    "all of what is written out": "assert all(f(row) for row in (1, 2))",
    "nothing asserted: the call must not raise": "f()",
    "a branch that asserts and returns": "if f():\n        assert 1\n        return\n    assert 2",
    "a return of another function": "def g():\n        return 1\n    assert g()",
}
UNSURE = {
    "a loop": "for row in f():\n        assert row",
    "a table that is empty": "for row in EMPTY:\n        assert row",
    "a loop without an assertion over what may be empty": "for row in f():\n        f(row)",
    "one branch": "if f():\n        assert 1",
    "behind a conditional return": "if f():\n        return\n    assert 1",
    "all of what may be empty": "assert all(row for row in f())",
    "all of what is left of a table": "assert all(row for row in TABLE if f(row))",
    "a helper that may not assert": "check_some(f())\n    for row in f():\n        check(row)",
}
MODULE = """
TABLE = [1, 2]
EMPTY = []

def check(value):
    assert value

def check_some(values):
    for value in values:
        assert value

def test_it():
    {}
"""


@pytest.mark.parametrize("body", SURE.values(), ids=SURE)
def test_a_test_that_always_asserts_is_not_reported(body: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(MODULE.format(body))
    assert unsure_tests(tmp_path) == []


@pytest.mark.parametrize("body", UNSURE.values(), ids=UNSURE)
def test_a_test_that_can_pass_without_asserting_is_reported(body: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(MODULE.format(body))
    assert unsure_tests(tmp_path) == [f"{tmp_path.name}.test_one::test_it"]


def test_every_test_of_the_suite_asserts() -> None:
    assert unsure_tests(ROOT / "tests") == []
