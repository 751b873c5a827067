"""The phases of a tuning run, as data: which fixes a phase tries, in which order, and what ends it.

fit makes the recipe run, scale gives ranks back to data parallelism, profile cures the wall the trace names,
retune searches around the best. Source: the workflow of arXiv 2603.07685 section 9.1 and Megatron-Bridge's
performance skills (fit, scale, profile, retune).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policies.trial import Phase


class Order(StrEnum):
    """How a phase picks the next fix from its list."""

    CHEAPEST_THAT_FITS = "the cheapest set of fixes that is predicted to fit"
    AS_LISTED = "the first of the list that applies"
    BY_EXPECTED_GAIN = "the largest expected gain on the diagnosed walls"
    SEARCHED = "a search over the knobs that mattered"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One phase: `asks` is its question, `ends` the words for having no more to propose."""

    phase: Phase
    asks: str
    order: Order
    fixes: tuple[str, ...] = ()  # files of policies/fixes; empty: every fix that names the phase
    last_resorts: tuple[str, ...] = ()  # only when `fixes` alone are not predicted to fit
    ends: str


PLANS: tuple[Plan, ...] = (
    Plan(
        phase=Phase.FIT,
        asks="What is the smallest change with which the recipe fits in memory?",
        order=Order.CHEAPEST_THAT_FITS,
        fixes=(
            "expandable_segments",
            "distributed_optimizer",
            "selective_recompute",
            "micro_batch_down",
            "precision_aware_optimizer",
            "more_expert_parallel",
            "full_recompute",
            "more_pipeline_parallel",
            "more_context_parallel",
            "more_tensor_parallel",
        ),
        last_resorts=("activation_offload", "optimizer_offload"),
        ends="the recipe fits",
    ),
    Plan(
        phase=Phase.SCALE,
        asks="Can ranks be given back to data parallelism, and hot communication be kept inside the fast domain?",
        order=Order.AS_LISTED,
        fixes=(
            "expert_parallel_for_tensor",
            "expert_parallel_in_domain",
            "less_tensor_parallel",
            "less_pipeline_parallel",
            "less_context_parallel",
            "more_context_parallel",
            "interleaved_pipeline",
        ),
        ends="no smaller model parallelism is legal, fits and promises more than the noise",
    ),
    Plan(
        phase=Phase.PROFILE,
        asks="Which wall costs most, and which fix recovers most of it?",
        order=Order.BY_EXPECTED_GAIN,
        ends="no fix is left whose bound is above the noise",
    ),
    Plan(
        phase=Phase.RETUNE,
        asks="Do the knobs that mattered, taken together, have a better setting around the best?",
        order=Order.SEARCHED,
        ends="the search around the best stopped paying",
    ),
)

PHASES: tuple[Phase, ...] = tuple(plan.phase for plan in PLANS)


def plan_of(phase: Phase) -> Plan:
    return next(plan for plan in PLANS if plan.phase is phase)
