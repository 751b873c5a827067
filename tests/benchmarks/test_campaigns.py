"""Replayed trajectories: the table, the machine fitted to a first row, and when a step counts as found."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from benchmarks.campaigns import Case, Replay, fitted_machine, read_cases, report_of, table_of
from trainer.engines.simulated import true_throughput
from trainer.recipe.machine import Machine
from trainer.recipe.rules import check

CASES = read_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_step_that_knobs_can_express_is_legal_and_changes_the_recipe(case: Case) -> None:
    recipes = [step.recipe for step in case.replayed if step.recipe]
    assert len(recipes) >= 2
    assert not [finding for recipe in recipes for finding in check(recipe) if finding.kind == "error"]
    assert all(before.diff(after) for before, after in pairwise(recipes))


def test_on_the_fitted_machine_the_first_recipe_has_its_published_rate() -> None:
    case = next(case for case in CASES if "HybridEP" in case.name)
    wanted = case.steps[0].published
    assert true_throughput(case.first, fitted_machine(case.first, wanted)) == pytest.approx(wanted, rel=1e-3)


def test_the_table_has_a_row_for_each_step_whether_a_knob_can_express_it_or_not() -> None:
    case = next(case for case in CASES if "HybridEP" in case.name)
    found = Replay(case=case, machine=Machine(), expert=[2.0, 3.0], tuned=[2.0, 2.5, 3.3], found=[0, 2])
    console = Console(width=130, record=True, file=StringIO())
    console.print(table_of(found))
    text = console.export_text()
    assert all(step.change in text for step in case.steps)
    assert "no knob" in text
    assert report_of(found) == (
        "tuner: 1.100 of the expert's last recipe after 2 bursts, as fast as the expert's last recipe after 2"
    )
    assert "never" in report_of(replace(found, tuned=[2.0, 2.5]))
