"""Compares two loss curves: a change that is labelled training-equivalent must not change the losses.

With the same initial weights and data only the summation order differs, and the curves diverge slowly. A change of
layout gives other initial weights (Megatron seeds its generators by tensor, pipeline and expert rank), so that only the
level is comparable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from policies.changes.legality import numerics_of
from policies.trial import Trial
from trainer.recipe import Recipe

TRAINING_EQUIVALENT = "training-equivalent"

# Knobs that move weights between ranks, which changes what the seeded generators draw
LAYOUT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "moe_grouped_gemm",
    "sequence_parallel",
)


# Knobs that change the number of tokens in the mean of the router's load-balancing loss: a slightly different gradient.
# Megatron-LM and Megatron-Bridge also draw random numbers of that shape before their first weights (initialize.py,
# _warmup_jit_function): between micro batches 1 and 2 the weights of real Megatron-LM 0.16.1 differed, its first loss
# by 0.4 % and later ones by 2.7 % (16 experts, 2 CPU ranks, 14 steps). The injected code resets the generators: with
# micro batches 1, 4 and 8 the first loss then agrees to seven digits, later ones to 0.14 %. A burst without injection
# has other weights.
BALANCING = ("micro_batch_size", "context_parallel_size")


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Largest relative difference of any step's loss, by the kind of change."""

    same_weights: float
    other_balancing: float
    other_weights: float


# Reduction order alone changes fp32 losses by about 1e-6 per step, bf16 losses by about 1e-3 (8 bits of mantissa); both
# grow over the steps of a burst. Another micro batch moved fp32 losses by 1.1e-3 within 7 steps (16 experts, 2 CPU
# ranks, `cpu-moe-slow`, micro batch 1 against 4). Other weights move the level by a few per cent around ln(vocabulary).
TOLERANCES = {
    "fp32": Tolerance(same_weights=1e-3, other_balancing=1e-2, other_weights=0.10),
    "fp16": Tolerance(same_weights=1e-2, other_balancing=2e-2, other_weights=0.10),  # 11 bits of mantissa: judged
    "bf16": Tolerance(same_weights=2e-2, other_balancing=3e-2, other_weights=0.10),
    "fp8": Tolerance(same_weights=5e-2, other_balancing=6e-2, other_weights=0.15),
}
# Largest relative rise of a loss from one step to the next that counts as a spike. Without a warm-up of the learning
# rate a falling loss may rise once: on an H100 (16 experts, bf16) by 4.6, 5.1 and 6.3 % in step 7 or 8 with micro
# batches of 1, 4 and 16, and never with 8; all other steps agreed within 2.1 %, repeats of one recipe within 0.2 %.
SPIKE = 0.10


def disagreement(candidate: Trial, reference: Trial) -> dict[str, Any] | None:
    """Returns the figures of `ReasonKind.LOSSES_DIVERGE` at the first step, other than a spike, that exceeds the
    tolerance.

    None if the curves agree, or if the change is not labelled training-equivalent.
    """
    changes = {knob: value for knob, (_, value) in reference.recipe.diff(candidate.recipe).items()}
    if numerics_of(changes) != TRAINING_EQUIVALENT:
        return None
    row = TOLERANCES.get(candidate.recipe.training.precision, TOLERANCES["fp8"])
    tolerance = _tolerance(row, changes, draws_first=_draws_first(candidate.recipe))
    ours, theirs = _curve(candidate), _curve(reference)
    spikes = _spike(ours) | _spike(theirs)
    for step, (here, there) in enumerate(zip(ours, theirs, strict=False)):
        if step not in spikes and abs(here - there) > tolerance * abs(there):
            return {
                "step": step,
                "loss": here,
                "against": reference.number,
                "against_loss": there,
                "tolerance": tolerance,
            }
    return None


def _tolerance(row: Tolerance, changes: Iterable[str], *, draws_first: bool) -> float:
    other_weights = {*LAYOUT, *BALANCING} if draws_first else set(LAYOUT)
    if not other_weights.isdisjoint(changes):
        return row.other_weights
    return row.same_weights if set(BALANCING).isdisjoint(changes) else row.other_balancing


def _draws_first(recipe: Recipe) -> bool:
    """Returns whether the trainer draws random numbers before its weights without resetting its generators."""
    return recipe.burst.engine == "command" and recipe.trainer is not None and not recipe.trainer.inject


def _curve(trial: Trial) -> list[float]:
    return next((outcome.loss for outcome in trial.outcomes if outcome.ok), [])


def _spike(curve: list[float]) -> set[int]:
    """Returns the step at which a loss that falls in all others rises a little; none if it rises more than once."""
    rises = {step: loss / before - 1 for step, (before, loss) in enumerate(pairwise(curve), 1) if loss > before > 0}
    return set(rises) if len(rises) == 1 and max(rises.values()) <= SPIKE else set()
