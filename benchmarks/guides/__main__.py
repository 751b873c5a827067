"""Prints the statements of published guides, the product's answers today, and whether both agree.

    python -m benchmarks.guides [ROW…] [--facts DIR]

Rows are those of `data/guides.csv`; a row that cannot be computed gives the reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.guides import long_context, models, runs
from benchmarks.guides.answer import Answer, Ask
from benchmarks.places import DATA, data_file, table_rows
from trainer.errors import BadInputError

ASKS: dict[str, Ask] = {**long_context.ASKS, **runs.ASKS, **models.ASKS}


def answered(row: str) -> Answer:
    """Returns the answer of one row; an error of the product is an answer, too."""
    if row not in ASKS:
        return Answer(says="nothing computes this row", agrees=None)
    try:
        return ASKS[row]()
    except BadInputError as error:
        return Answer(says=f"refused: {error.problems[0]}", agrees=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="ids of rows; default all")
    parser.add_argument("--facts", type=Path, default=DATA, help="the folder of guides.csv; default benchmarks/data")
    asked = parser.parse_args()
    console = Console(width=150)
    table = table_rows(data_file("guides.csv", folder=asked.facts))
    rows = [row for row in table if not asked.rows or row["id"] in asked.rows]
    for row in rows:
        found = answered(row["id"])
        console.print(f"{row['id']} {found.verdict}", style="bold", highlight=False)
        for name, text in (("guide", row["says"]), ("figures", row["figures"]), ("now", found.says)):
            if text:
                console.print(f"    {name}: {text}", highlight=False, markup=False)


if __name__ == "__main__":
    main()
