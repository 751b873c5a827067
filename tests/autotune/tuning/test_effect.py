"""Proof that a change acts: by the settings of the built model, then by the trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analyzers.diagnosis import Analysis, Coverage, IdleByCause, Partition, TraceReport
from autotune.looks.reasons import sentence
from autotune.tuning.effect import no_effect
from autotune.tuning.loop import base_proposal
from policies.fixes import FIXES
from policies.trial import Changes, Status, Trial
from tests.autotune.tuning.fakes import analysis_of, base_recipe, outcome_of


def traced(recompute_us: float) -> Analysis:
    step = Partition(
        start_us=0,
        duration_us=100_000,
        busy_us=100_000,
        compute_us=100_000,
        communication_us=0,
        exposed_communication_us=0,
        communication_by_kind={},
        copy_us=0,
        exposed_copy_us=0,
        idle_us=0,
        idle_by_cause=IdleByCause(),
        recompute_us=recompute_us,
    )
    coverage = Coverage(device_time_classified=1.0, kernels=1)
    trace = TraceReport(path="t", format="kineto", rank=0, devices=[], span=step, steps=[step], coverage=coverage)
    return Analysis(diagnosis=analysis_of().diagnosis, traces=[trace])


def trial_of(
    *, changes: Changes | None = None, fix: str = "search", analysis: Analysis | None = None, **acting: Any
) -> Trial:
    return Trial(
        number=1,
        proposal=replace(base_proposal(base_recipe()), fix=fix),
        changes=changes or {},
        bursts=(1,),
        outcomes=(outcome_of(1000, acting=acting),),
        status=Status.OK,
        analysis=analysis,
    )


def test_a_knob_the_model_does_not_have_as_asked_is_named() -> None:
    trial = trial_of(changes={"moe_grouped_gemm": (False, True)}, moe_grouped_gemm=False)
    found = no_effect(trial, None)
    assert found is not None
    assert found.figures == {"knobs": [{"knob": "moe_grouped_gemm", "wanted": True, "built": False}]}
    assert sentence(found) == "moe_grouped_gemm was set to True, the built model has False"


def test_a_list_knob_is_compared_as_text() -> None:
    changes: Changes = {"recompute_modules": ((), ("core_attn", "moe_act"))}
    assert no_effect(trial_of(changes=changes, recompute_modules="core_attn,moe_act"), None) is None


def test_a_knob_that_nothing_reports_counts_as_applied() -> None:
    assert no_effect(trial_of(changes={"manual_gc": (False, True)}), None) is None


@pytest.mark.parametrize(("after_us", "acted"), [(1_000, True), (30_000, False)])
def test_a_fix_that_promised_less_recompute_must_show_it(after_us: float, acted: bool) -> None:
    assert FIXES["drop_recompute"].proof is not None
    before = trial_of(analysis=traced(30_000))
    after = trial_of(fix="drop_recompute", analysis=traced(after_us))
    assert (no_effect(after, before) is None) is acted
