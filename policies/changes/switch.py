"""Preconditions and changes of fixes that turn one knob on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from policies.changes.fix import KnobChanges
from policies.situation import Situation


def turn_on(knob: str, **also: Any) -> Callable[[Situation], list[KnobChanges]]:
    """Returns the `changes` of a fix that sets `knob` to True, with the knobs that it requires."""
    return lambda situation: [{knob: True, **also}]


def unless_on(knob: str, because: Callable[[Situation], str | None] | None = None) -> Callable[[Situation], str | None]:
    """Returns a precondition that fails when the knob is on, or for the reason `because` gives."""

    def precondition(situation: Situation) -> str | None:
        if situation.knob(knob):
            return f"{knob} is on"
        return because(situation) if because else None

    return precondition


def gpu_only(situation: Situation) -> str | None:
    return "there is no GPU" if situation.on_cpu else None


def experts_only(situation: Situation) -> str | None:
    return None if situation.is_moe else "the model has no experts"


def gpu_experts_only(situation: Situation) -> str | None:
    return gpu_only(situation) or experts_only(situation)


def pipelines_only(situation: Situation) -> str | None:
    return "PP is 1" if situation.knob("pipeline_model_parallel_size") == 1 else None


def expert_parallel_only(situation: Situation) -> str | None:
    if situation.knob("expert_model_parallel_size") > 1:
        return None
    return "EP is 1: nothing is dispatched to another rank"
