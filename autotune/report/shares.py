"""The section on the changes of the tuned recipe: the predicted share of each, and the obtained one if bursts ran
without it."""

from __future__ import annotations

from autotune.looks.shares import COLUMNS, NUMBERS, share_rows
from autotune.looks.tables import Table
from autotune.report.material import Material, Section


def shares(material: Material) -> Section | None:
    ended = material.history.ended
    if ended is None or not ended.changes:
        return None
    paragraphs = (
        "Every named change from the base recipe to the tuned one. A share is the gain over the tuned recipe without "
        "this change: predicted by the surrogate at the end, obtained from bursts without it (`run --ablate`, or "
        "trials of the search that differ in it alone); `with 2 others`: of three changes taken out together. "
        "Shares do not add up to the speed-up. What was taken out is not in tuned_recipe.yaml.",
    )
    table = Table(columns=COLUMNS, rows=share_rows(ended.changes), numbers=NUMBERS)
    return Section(key="changes", title="The changes and their shares", paragraphs=paragraphs, table=table)
