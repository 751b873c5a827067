"""The section on what was learnt of the cluster: the constants of the estimate before any burst and now."""

from __future__ import annotations

from autotune.looks.quantities import significant
from autotune.looks.tables import Table
from autotune.report.material import Material, Section
from policies.belief.corrections import corrections
from policies.learned import LearnedPolicy
from trainer.recipe import Recipe

MOST = 16  # rows


def learnt(material: Material) -> Section | None:
    """None where nothing ran."""
    study = material.history.study
    if study is None:
        return None
    base = Recipe.model_validate(study.recipe)
    belief = LearnedPolicy(base, study.seed, material.history.lessons).belief(material.trials)
    found = corrections(belief.time, base)
    rows = tuple(
        (one.words, one.unit, significant(one.before, 3), significant(one.after, 3), _interval(one.low, one.high))
        for one in found[:MOST]
    )
    traced = sum(bool(each.ranks) for each in belief.time.measured)
    said = (
        f"What {len(belief.time.measured)} recipes that ran ({traced} of them traced) say of this cluster, where they "
        "say something: constants of the step-time estimate as the tables have them and as every prediction now uses "
        "them, the furthest moved first. Constants that no burst has touched keep the tables' value.",
    )
    columns = ("what", "unit", "tables", "this cluster", "90 % interval")
    if not rows:
        return None
    table = Table(columns=columns, rows=rows, numbers=(2, 3, 4))
    return Section(key="learnt", title="What was learnt of this cluster", paragraphs=said, table=table)


def _interval(low: float, high: float) -> str:
    return f"{significant(low, 3)} to {significant(high, 3)}"
