"""GPUs that are announced but lack a published figure that estimates need: rows of `announced.csv`.

A recipe that names one is refused; the error says which figures are missing and how to give them.
"""

from __future__ import annotations

from functools import cache

from trainer.recipe.tables import read_table


@cache
def announced() -> dict[str, tuple[str, str]]:
    """Returns {GPU name in recipes: (the fact, the next step)} for the error."""
    found = {}
    for row in read_table("announced.csv"):
        missing = row["missing"].split()
        given = ", ".join(f"{field}: …" for field in missing)
        found[row["gpu"]] = (
            f"GPU {row['gpu']!r} is announced without {' and '.join(missing)}, which estimates need",
            f"write gpu: {{name: {row['gpu']}, {given}, {row['figures']}}}",
        )
    return found
