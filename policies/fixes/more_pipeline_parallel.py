"""Splits the layers over more pipeline stages."""

from policies.changes.degrees import DEGREES, larger, with_pp
from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import grows
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return None if larger(situation.recipe, "pp") else "there are no more ranks for PP"


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in larger(recipe, "pp")[:3] for change in with_pp(recipe, size)]


FIX = Fix(
    name="more_pipeline_parallel",
    title="more pipeline parallelism",
    page=Page(
        summary="More pipeline parallelism: split the layers over more stages.",
        what="`pipeline_model_parallel_size` times 2, 4 or 8.",
        shows="out of memory with weights, gradients and optimizer the largest part.",
        costs=(
            "a bubble of (PP-1)/micro batches, and send/recv between stages; VPP shrinks the bubble later. Weights and "
            "optimizer state divide by PP, activations in flight do not."
        ),
        not_when="the ranks do not divide, or there are fewer micro batches than stages.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-memory-tuning card.yaml:151 (Llama3-70B, PP 4 to 8: "
            "-5.9 % throughput, -5.6 GB)."
        ),
    ),
    phases=(Phase.FIT,),
    fit_order=80,
    knobs=(DEGREES["pp"],),
    matches=grows(DEGREES["pp"]),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.12,
)
