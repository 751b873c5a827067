"""Splits each sequence over fewer ranks: less context parallelism."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import DEGREES, smaller, with_cp
from policies.changes.fix import CP, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import shrinks
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return "CP is 1" if situation.knob("context_parallel_size") == 1 else None


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in smaller(recipe, "cp") for change in with_cp(recipe, size)]


FIX = Fix(
    name="less_context_parallel",
    title="less context parallelism",
    page=Page(
        summary="Less context parallelism: each sequence is split over fewer ranks.",
        what="the smallest `context_parallel_size` that is predicted to fit.",
        shows="exposed CP communication with fewer than 4096 tokens of a sequence on a rank.",
        costs="activations grow by the factor CP shrinks.",
        not_when="CP is 1, or the activations do not fit.",
        source="arXiv 2603.07685 sections 6 and 9 (avoid CP below 4096 tokens per rank; disable CP below 8192).",
    ),
    phases=(Phase.SCALE, Phase.PROFILE),
    claims=(
        Claim(wall=Wall.COMMUNICATION, parts=CP, fraction=1.0, source="no CP, no key/value exchange"),
        Claim(wall=Wall.COMPUTE, fraction=0.1, source="attention over longer pieces"),
    ),
    knobs=(DEGREES["cp"],),
    matches=shrinks(DEGREES["cp"]),
    precondition=_precondition,
    changes=_changes,
    chance=0.6,
    proof=Proof(measure="cp_busy", moves=-1),
)
