"""Parts of a traced step: they add up to it, and time that a rank waits for others is a part of its own."""

from __future__ import annotations

import msgspec
import pytest

from analyzers.diagnosis import Wall
from autotune.gap.traced import seen_parts
from tests.policies.drawn import STEP_US, analysis


def seen(exposed_us: dict[str, float], waiting_us: dict[str, float]) -> dict[str, float]:
    (trace,) = analysis({Wall.COMMUNICATION: exposed_us}).traces
    step = msgspec.structs.replace(trace.steps[0], waiting_by_kind=waiting_us)
    return seen_parts(msgspec.structs.replace(trace, steps=[step]), even=True)


def test_waiting_in_other_communication_is_waiting_and_once_in_a_pipeline() -> None:
    parts = seen({"other": 5e3, "pp": 3e3, "dp": 4e3}, {"other": 4e3, "pp": 2e3, "dp": 1e3})
    assert parts["waiting"] == pytest.approx(8e-3)
    assert parts["dp_exposed"] == pytest.approx(3e-3)
    assert parts["other"] == pytest.approx(1e-3)
    assert sum(parts.values()) == pytest.approx(STEP_US / 1e6)


def test_waiting_in_an_exchange_of_experts_is_for_the_rank_with_most_tokens() -> None:
    parts = seen({"ep_combine": 5e3}, {"ep_combine": 2e3})
    assert parts["experts_wait"] == pytest.approx(2e-3)
    assert parts["ep_exposed"] == pytest.approx(3e-3)
