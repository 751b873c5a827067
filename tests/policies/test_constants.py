"""The table of constants: every row is used, has unit, meaning and origin, and a source where it was fitted."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import policies
from policies.constants import constant, constants
from tests.rows import filled

FOLDER = Path(policies.__file__).parent
ORIGINS = ("fitted", "measured", "numerical", "judged")
NAMED = re.compile(r"constant\(\s*\"(\w+)\"\s*\)")


def rows() -> list[dict[str, str]]:
    with (FOLDER / "constants.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_is_complete() -> None:
    for row in filled(rows()):
        assert None not in row, f"{row['name']}: a comma too many"
        float(row["value"])
        assert row["group"], row["name"]
        assert row["unit"], row["name"]
        assert row["meaning"], row["name"]
        assert row["origin"] in ORIGINS, row["name"]
        assert row["source"] or row["origin"] not in ("fitted", "measured"), f"{row['name']}: fitted to what?"


def test_each_name_has_one_number() -> None:
    names = [row["name"] for row in rows()]
    assert len(set(names)) == len(names)
    assert list(constants()) == names
    assert constant("phase_share") == constants()["phase_share"].value


def test_rows_and_uses_are_the_same() -> None:
    used = {name for path in FOLDER.rglob("*.py") for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert used == {row["name"] for row in rows()}
