"""Gains in the report: predicted next to obtained, the waterfall of accepted changes, and changes that do nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from autotune.looks.acting import acting_changes
from autotune.report.document import document_of
from autotune.report.figures import FIGURES, memory
from autotune.report.gain_figures import LABEL_WIDTH, TICKS, _labelled, _x
from autotune.report.gains import forecasts, predictions, stages, waterfall
from autotune.report.material import Material, material_of
from autotune.tuning.history import History
from policies.trial import FixShare
from tests.autotune.report.drawn_study import STEPS, Step, events
from tests.rows import filled
from trainer.recipe import load_recipe


def drawn(steps: tuple[Step, ...] = STEPS) -> Material:
    history = History(events(steps))
    return material_of(history, document_of(history))


def test_each_prediction_is_next_to_the_obtained_gain() -> None:
    material = drawn()
    section = predictions(material)
    assert section is not None
    assert section.table is not None
    rows = {row[0]: row for row in section.table.rows}
    assert set(rows) == {str(trial.number) for trial in material.trials if trial.proposal.predicted.gain is not None}
    assert rows["2"][2].startswith("+35.0 %")
    assert rows["2"][3].startswith("+30.7 %")
    assert rows["6"][3] == "out of memory"
    assert FIGURES["predictions"](material).count('class="mark oom"') >= 1


def test_labels_of_gains_keep_their_distance_and_those_near_zero_are_kept() -> None:
    kept = _labelled([each for each in TICKS if -0.05 <= each <= 4.9], -0.05, 4.9)
    assert kept[0] == 0.0
    places = sorted(_x(each, -0.05, 4.9) for each in filled(kept))
    assert all(right - left >= LABEL_WIDTH for left, right in pairwise(places))


def test_the_interval_of_every_trial_is_inside_the_drawing_of_throughput() -> None:
    whiskers = re.findall(r'<line [^>]*class="whisker"[^>]*>', str(FIGURES["throughput"](drawn())))
    tops = [float(y) for each in filled(whiskers) for y in re.findall(r' y[12]="([-\d.]+)"', each)]
    assert filled(tops)
    assert min(tops) >= 0.0


def test_the_legend_of_memory_has_only_what_is_drawn() -> None:
    assert "out of memory" in memory(drawn())
    assert "out of memory" not in memory(drawn(STEPS[1:2]))


def test_a_gain_is_inside_or_outside_the_interval_that_was_predicted() -> None:
    forecast = forecasts(drawn())[0]
    predicted = replace(forecast.trial.proposal.predicted, gain=0.2, gain_low=0.1, gain_high=0.35)
    inside = replace(
        forecast, trial=replace(forecast.trial, proposal=replace(forecast.trial.proposal, predicted=predicted))
    )
    assert inside.inside is True
    high = replace(predicted, gain_low=0.32)
    assert (
        replace(
            forecast, trial=replace(forecast.trial, proposal=replace(forecast.trial.proposal, predicted=high))
        ).inside
        is False
    )
    assert forecast.inside is None  # a claim has no interval


def test_the_stages_of_the_waterfall_lead_from_the_reference_to_the_best() -> None:
    material = drawn()
    found = stages(material)
    rates = {number: figures.tokens_per_s_per_gpu for number, figures in material.figures.items()}
    best, reference = material.history.best, material.history.reference
    assert best is not None
    assert reference is not None
    assert found[0].before == rates[reference.number]
    assert found[-1].after == rates[best.number]
    assert [stage.before for stage in found[1:]] == [stage.after for stage in found[:-1]]
    assert waterfall(material) is not None
    assert FIGURES["waterfall"](material).count('class="bar"') == len(found) + 1


def test_a_gain_is_divided_among_the_fixes_that_were_predicted_to_gain() -> None:
    material = drawn()
    trial = material.path[-1].trial
    shares = (("cuda_graphs", 0.3), ("drop_recompute", 0.1), ("more_expert_parallel", -0.2))
    fixes = tuple(FixShare(fix=name, wall=None, knobs=(), predicted_share=share) for name, share in shares)
    material.history.attempted[trial.number] = replace(trial, proposal=replace(trial.proposal, fixes=fixes))
    parts = stages(material_of(material.history, material.document))[-1].parts
    assert [part.fix for part, _ in parts] == ["cuda_graphs", "drop_recompute"]
    assert [share for _, share in parts] == pytest.approx([0.75, 0.25])


def test_memory_of_many_ranks_is_a_distribution() -> None:
    few, many = drawn(), drawn(tuple(replace(step, peaks=tuple(0.5 + n / 1000 for n in range(256))) for step in STEPS))
    assert memory(few).count('class="stroke"') == sum(len(m.peak_gib) for m in few.figures.values())
    drawing = memory(many)
    assert drawing.count('class="stroke"') == len(many.figures)  # the medians
    counted = [int(ranks) for ranks in re.findall(r"trial 1: (\d+) ranks of 256", drawing)]
    assert sum(counted) == 256
    assert len(counted) > 3


def test_changes_that_do_nothing_are_not_shown() -> None:
    recipe = load_recipe("cpu-moe").replace(
        {"recompute_granularity": "selective", "recompute_modules": ["mlp", "moe_act"]}
    )
    other = recipe.replace(
        {"recompute_modules": ["moe_act", "mlp"], "manual_gc_interval": 50, "expert_tensor_parallel_size": 1,
         "micro_batch_size": 2, "tp_comm_overlap": True}
    )  # fmt: skip
    assert set(recipe.diff(other)) > {"recompute_modules", "manual_gc_interval", "expert_tensor_parallel_size"}
    assert acting_changes(other, recipe.diff(other)) == {"micro_batch_size": (1, 2)}
