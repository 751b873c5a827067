"""Tells from a burst on GPUs which settings need software that its ranks do not have, so that none is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.search.refusal import TrainerRefusal
from policies.trial import Trial
from trainer.burst import Outcome
from trainer.recipe.rules.local import NEED_TRANSFORMER_ENGINE


@dataclass(frozen=True, kw_only=True)
class Software:
    """Optional software, the values of knobs that need it, and whether the ranks of a burst have it."""

    name: str
    needing: Mapping[str, tuple[Any, ...]]
    is_there: Callable[[Outcome], bool]


def _has_transformer_engine(outcome: Outcome) -> bool:
    return outcome.layers != "local"


SOFTWARE = (
    Software(
        name="Transformer Engine",
        needing={knob: values or (True,) for knob, values in NEED_TRANSFORMER_ENGINE.items()},
        is_there=_has_transformer_engine,
    ),
    Software(
        name="the package grouped_gemm",
        needing={"moe_grouped_gemm": (True,)},
        is_there=lambda outcome: _has_transformer_engine(outcome) or "grouped-gemm" in outcome.versions,
    ),
    Software(
        name="DeepEP",
        needing={"moe_token_dispatcher_type": ("flex",)},
        is_there=lambda outcome: "deep-ep" in outcome.versions,
    ),
)


def refusals_of_missing_software(trials: Sequence[Trial]) -> Iterator[TrainerRefusal]:
    """Yields one refusal per knob that needs what the last burst on GPUs that names its software did not have."""
    for trial in reversed(trials):
        for outcome in reversed(trial.outcomes):
            if _names_its_software(trial, outcome):
                yield from _refusals_of(trial, outcome)
                return


def _refusals_of(trial: Trial, outcome: Outcome) -> Iterator[TrainerRefusal]:
    for software in SOFTWARE:
        if not software.is_there(outcome):
            for knob, values in software.needing.items():
                yield TrainerRefusal(values={knob: values}, trial=trial.number, evidence="", missing=software.name)


def _names_its_software(trial: Trial, outcome: Outcome) -> bool:
    """Returns whether the outcome shows what is installed: only engine megatron tells, and a recipe with local layers
    would not use Transformer Engine."""
    return (
        bool(outcome.layers) and not trial.recipe.hardware.is_cpu and trial.recipe.knob("transformer_impl") != "local"
    )
