"""A step of the accepted path: its fixes with their shares, the walls and the parts before and after, the bars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from analyzers.diagnosis import Analysis, Wall
from autotune.looks.fix_names import names_text, parts_of, short_names, titles_text
from autotune.looks.quantities import NONE
from autotune.report import document_of
from autotune.report.before_after import compared_traces, fixes_table, pair_of, parts_table, walls_table
from autotune.report.material import Material, material_of
from autotune.report.page import page
from autotune.report.path import PathStep
from autotune.tuning.events import Event, Proposed
from autotune.tuning.history import History
from autotune.tuning.lines import line_of
from policies.reason import Reason, ReasonKind
from policies.trial import FixShare, Trial
from tests.autotune.report.drawn_study import events

STEP = 3  # step of the accepted path: trial 3, a larger micro batch
FIXES = (
    FixShare(fix="micro_batch_up", wall=Wall.HOST, knobs=("micro_batch_size",), predicted_share=0.18),
    FixShare(fix="moe_router_dtype", wall=None, knobs=("moe_router_dtype",), predicted_share=None),
)
PARTS = {"compute_s": [0.9, 0.8], "host_s": [0.3, 0.1], "recompute_s": [0.06, 0.06]}


def written(**changes: Any) -> list[Event]:
    """Returns the drawn study whose trial 3 was proposed with these fields."""
    return [
        msgspec.structs.replace(event, **changes) if isinstance(event, Proposed) and event.trial == 3 else event
        for event in events()
    ]


def material(**changes: Any) -> Material:
    history = History(written(**changes))
    return material_of(history, document_of(history))


def step(**changes: Any) -> PathStep:
    return material(**changes).path[STEP]


def learned(parts: dict[str, list[float]]) -> Reason:
    figures = {
        "wall": None, "parts": parts, "gain": 0.18, "gain_low": 0.1, "gain_high": 0.3, "fits_probability": 0.9,
        "learned": {"trials": 2, "traced": 2, "lessons": []},
    }  # fmt: skip
    return Reason(kind=ReasonKind.EXPECTED_IMPROVEMENT, figures=figures)


def test_each_fix_is_shown_with_its_wall_and_share_and_the_interaction_is_a_row() -> None:
    table = fixes_table(step(fixes=FIXES, interaction=0.007).trial)
    assert table is not None
    first, second, last = table.rows
    assert first[:3] == ("a larger micro batch", "host", "+18.0 %")
    assert first[3] == "micro_batch_size 1 → 4"
    assert second[:3] == ("moe_router_dtype (a knob by itself)", NONE, "not known")
    assert last[:3] == ("interaction", "", "+0.7 %")


def test_one_fix_alone_has_no_interaction_and_all_of_the_obtained_gain() -> None:
    made = material(fixes=FIXES[:1], interaction=0.0)
    table = fixes_table(made.path[STEP].trial)
    assert table is not None
    assert len(table.rows) == 1
    entry = made.document.trials[3].fixes[0]
    obtained = made.path[STEP].obtained
    assert obtained is not None
    assert entry.obtained_share == pytest.approx(obtained.value - 1)
    assert entry.predicted_share == 0.18


def test_no_burst_separates_the_shares_of_several_fixes() -> None:
    fixes = material(fixes=FIXES, interaction=0.007).document.trials[3].fixes
    assert [entry.obtained_share for entry in fixes] == [None, None]


def test_the_reason_of_a_proposal_is_in_the_document_as_data() -> None:
    entry = material(reason=learned(PARTS), because="").document.trials[3]
    assert entry.reason == learned(PARTS)
    assert "host 300 ms → 100 ms" in entry.because
    assert material().document.trials[3].reason is None


def test_walls_are_shown_before_and_after_with_their_share_of_the_step() -> None:
    table = walls_table(step())
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["host"] == ("288 ms (21 %)", "76.4 ms (7 %)")
    assert set(rows) == {"memory", "communication", "host"}


def test_the_memory_that_did_not_fit_is_shown_against_the_limit() -> None:
    table = walls_table(material().path[1])
    assert table is not None
    assert table.rows[0] == ("memory", "out of memory", "0.660 GiB of 1.00 GiB")


def test_predicted_parts_are_shown_with_the_traced_ones() -> None:
    table = parts_table(step(reason=learned(PARTS)))
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["host"][0] == "300 ms → 100 ms"
    assert rows["host"][1] == "325 ms → 86.2 ms"
    assert rows["EP exposed"][0] == "0 → 0"
    assert rows["step"][0] == "1.26 s → 960 ms"


def test_without_a_prediction_by_parts_the_traced_parts_stand_alone() -> None:
    table = parts_table(step())
    assert table is not None
    assert table.columns == ("part of the step", "traced, rank 1")


def test_predicted_parts_stand_alone_where_no_trace_is_there_to_compare() -> None:
    found = step(reason=learned(PARTS))
    untraced = replace(found, trial=replace(found.trial, analysis=None))
    table = parts_table(untraced)
    assert table is not None
    assert table.columns == ("part of the step", "predicted")
    assert pair_of(untraced) is None


def test_the_same_rank_is_compared_before_and_after() -> None:
    found = step()
    pair = pair_of(found)
    assert pair is not None
    assert pair.before.rank == pair.after.rank == 1
    assert found.parent is not None
    assert found.parent.analysis is not None
    assert pair.before in found.parent.analysis.traces


def test_a_rank_that_only_one_of_them_traced_is_not_compared() -> None:
    history = History(events())
    parent, trial = history.attempted[2], history.attempted[3]
    assert parent.analysis is not None
    assert trial.analysis is not None
    history.attempted[2] = with_analysis(parent, only(parent.analysis, 0))
    history.attempted[3] = with_analysis(trial, only(trial.analysis, 1))
    made = material_of(history, document_of(history))
    assert pair_of(made.path[STEP]) is None
    assert [trace.rank for trial, trace in compared_traces(history.trials) if trial.number in (2, 3)] == [0, 1]


def test_the_page_draws_each_step_of_the_path_before_and_after() -> None:
    text = page(material(fixes=FIXES, interaction=0.007), None)
    assert "before · trial 2 · rank 1" in text
    assert "after · trial 3 · rank 1" in text
    assert "About a larger micro batch" in text


def test_the_log_names_a_step_by_its_fixes_then_says_what_changed_and_the_shares() -> None:
    history = History(written(fixes=FIXES, interaction=0.007))
    event = history.proposals[3][1]
    lines = (line_of(event, history) or "").splitlines()
    assert lines[0] == "[profile] trial 3: micro_batch_up + moe_router_dtype"
    assert lines[1] == "  changes: micro_batch_size 1 → 4"
    assert lines[2] == "  shares: micro_batch_up (host) +18.0 %, moe_router_dtype not known, interaction +0.7 %"
    assert lines[3].startswith("  why: ")


def test_a_single_knob_is_shown_with_its_values_and_only_once() -> None:
    alone = (FixShare(fix="threads_per_rank", wall=None, knobs=("threads_per_rank",), predicted_share=0.01),)
    trial = History(events()).attempted[7]
    renamed = msgspec.structs.replace(History(events()).proposals[7][1], fixes=alone)
    history = History([renamed if isinstance(e, Proposed) and e.trial == 7 else e for e in events()])
    assert names_text(history.attempted[7].proposal, trial.changes).startswith("threads_per_rank ")
    assert "→ 2" in names_text(history.attempted[7].proposal, trial.changes)


def test_a_search_of_an_old_journal_is_named_by_the_fixes_that_its_change_has() -> None:
    history = History(events())
    trial = history.attempted[7]
    assert trial.proposal.fix == "search"
    assert [part.fix for part in parts_of(trial.proposal, trial.changes)] == ["threads"]
    assert titles_text(trial) == "another number of threads per rank"
    assert "search" not in (line_of(history.proposals[7][1], history) or "").splitlines()[0]
    assert document_of(history).trials[7].fixes[0].predicted_share is None


def test_of_many_parts_the_first_are_named_and_the_rest_counted() -> None:
    trial = step(fixes=FIXES * 3).trial
    assert titles_text(trial) == "a larger micro batch + moe_router_dtype + a larger micro batch + 3 more"
    assert short_names(trial) == "micro_batch_up + moe_router_dtype + 4 more"


def only(analysis: Analysis, rank: int) -> Analysis:
    traces = [trace for trace in analysis.traces if trace.rank == rank]
    return msgspec.structs.replace(analysis, traces=traces)


def with_analysis(trial: Trial, analysis: Analysis) -> Trial:
    return replace(trial, analysis=analysis)
