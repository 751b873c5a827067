"""A stacked bar is exact: its segments add up to the step, whatever overlaps inside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.diagnosis import CommunicationTime, IdleByCause, Partition
from autotune.looks.segments import KINDS, compute_classes, mean_segments, segments

TIMES = st.floats(0.0, 1e6)
KIND_NAMES = st.sampled_from(["ep_dispatch", "ep_combine", "tp", "dp", "other"])


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    compute, exposed, copy = draw(TIMES), draw(TIMES), draw(TIMES)
    idle = IdleByCause(host_us=draw(TIMES), bubble_us=draw(TIMES), sync_us=draw(TIMES), unattributed_us=draw(TIMES))
    idle_us = idle.host_us + idle.bubble_us + idle.sync_us + idle.unattributed_us
    # Kinds are drawn freely: they may fall short of the exposed time, or overlap and exceed it.
    kinds = draw(st.dictionaries(KIND_NAMES, st.floats(0.0, exposed), max_size=4))
    return Partition(
        start_us=0.0,
        duration_us=compute + exposed + copy + idle_us,
        busy_us=compute + exposed + copy,
        compute_us=compute,
        communication_us=exposed,
        exposed_communication_us=exposed,
        communication_by_kind={name: CommunicationTime(busy_us=us, exposed_us=us) for name, us in kinds.items()},
        copy_us=copy,
        exposed_copy_us=copy,
        idle_us=idle_us,
        idle_by_cause=idle,
        compute_by_class=draw(st.dictionaries(st.sampled_from(["recompute", "attention"]), TIMES)),
    )


@given(partitions())
def test_the_segments_of_a_step_add_up_to_it(step: Partition) -> None:
    parts = segments(step)
    assert all(part.us > 0 for part in parts)
    assert sum(part.us for part in parts) == pytest.approx(step.duration_us, abs=1e-3)


@given(st.lists(partitions(), min_size=1, max_size=4))
def test_the_average_step_adds_up_to_the_average_duration(steps: list[Partition]) -> None:
    mean_us = sum(step.duration_us for step in steps) / len(steps)
    assert sum(part.us for part in mean_segments(steps)) == pytest.approx(mean_us, abs=1e-3)


def test_no_two_kinds_share_a_letter() -> None:
    assert len({kind.glyph for kind in KINDS}) == len(KINDS)


@given(st.lists(partitions(), min_size=1, max_size=4))
def test_classes_of_compute_are_ranked_by_their_average(steps: list[Partition]) -> None:
    ranked = compute_classes(steps)
    assert ranked == sorted(ranked, key=lambda row: (-row[1], row[0]))
    total = sum(sum(step.compute_by_class.values()) for step in steps)
    assert sum(us for _, us in ranked) == pytest.approx(total / len(steps))
