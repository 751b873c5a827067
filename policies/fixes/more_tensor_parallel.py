"""Splits every matrix over more ranks."""

from policies.changes.degrees import DEGREES, larger, with_tp
from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import grows
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return None if larger(situation.recipe, "tp") else "there are no more ranks for TP"


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in larger(recipe, "tp")[:2] for change in with_tp(recipe, size)]


FIX = Fix(
    name="more_tensor_parallel",
    title="more tensor parallelism",
    page=Page(
        summary="More tensor parallelism: split every matrix over more ranks.",
        what=(
            "`tensor_model_parallel_size` times 2 or 4 with sequence parallel; experts stay whole (ETP=1) where legal."
        ),
        shows="out of memory that sharding experts and stages does not fix.",
        costs=(
            "more than any other parallelism: two collectives per layer in forward and in backward, exposed. Weights "
            "divide by TP, and activations with sequence parallel."
        ),
        not_when="heads or ranks do not divide; it should stay inside the fast domain.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-memory-tuning card.yaml:161 (Llama3-70B, TP 4 to 8: "
            "-28 % throughput, -8.6 GB)."
        ),
    ),
    phases=(Phase.FIT,),
    fit_order=100,
    knobs=(DEGREES["tp"],),
    matches=grows(DEGREES["tp"]),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.28,
)
