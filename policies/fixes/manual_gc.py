"""Collects garbage at chosen steps, on all ranks at once."""

from analyzers.diagnosis import Wall
from policies.changes.fix import GC, Claim, Fix, KnobChanges, Page
from policies.changes.matching import turns_on
from policies.situation import Situation
from policies.trial import Phase

RARE = 10  # steps from one collection to the next


def _precondition(situation: Situation) -> str | None:
    interval = situation.knob("manual_gc_interval")
    if situation.knob("manual_gc") and (interval == 0 or interval >= RARE):
        return "garbage collection is manual, and rare"
    return None


def _changes(situation: Situation) -> list[KnobChanges]:
    return [{"manual_gc": True, "manual_gc_interval": interval} for interval in (100, RARE)]


FIX = Fix(
    name="manual_gc",
    title="manual garbage collection",
    page=Page(
        summary="Manual garbage collection: collect at chosen steps, on all ranks at once.",
        what="`manual_gc` with `manual_gc_interval`.",
        shows="pauses annotated `gc` in the trace while the device waits; ranks pausing at different steps.",
        costs="garbage lives a little longer on the host.",
        not_when="it is on, and collects every 10 steps or less often.",
        source=(
            "arXiv 2603.07685 section 9.1 (first fix for host overhead: manual GC, interval 10; Megatron's README says "
            "100)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(Claim(wall=Wall.HOST, parts=GC, fraction=0.9, source="no collection runs inside a step"),),
    knobs=("manual_gc",),
    matches=turns_on("manual_gc"),
    precondition=_precondition,
    changes=_changes,
    chance=0.6,
)
