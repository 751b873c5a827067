"""Drop recompute: keep the activations that memory has room for.

*What it is*: the lightest recompute that is predicted to fit: none, then selective, instead of
what is on; where none fits, with a smaller micro batch.

*How it shows*: time inside recompute in the trace (the memory wall), with the hottest rank below its limit.

*What it costs*: memory, all of what recompute saved; the memory gate says whether there is room.

*When it does not apply*: nothing is recomputed.

*Source*: GB200 guide of Megatron-LM (eb0783b6d356, docs/discussions/deepseek-v3-gb200-optimization):
dropping the MLA up-projection's recompute 566 to 611 TFLOP/s (+7.9 %); arXiv 2603.07685 section 4.1.4 (full
costs about 33 %).
"""

from analyzers.diagnosis import Wall
from policies.fix import RECOMPUTE, Claim, Fix, KnobChanges, MemoryEffect, Proof
from policies.recompute import lighter_with_room
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return None if situation.knob("recompute_granularity") else "nothing is recomputed"


def _changes(situation: Situation) -> list[KnobChanges]:
    return lighter_with_room(situation.recipe)


FIX = Fix(
    name="drop_recompute",
    title="less recompute",
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.MEMORY,
            parts=RECOMPUTE,
            fraction=1.0,
            source="recomputed work disappears entirely; what remains after a partial drop shows in the next trace",
        ),
    ),
    precondition=_precondition,
    changes=_changes,
    memory=MemoryEffect(fraction=0.5, note="uses the memory that recompute saved"),
    chance=0.9,
    proof=Proof(measure="recompute", moves=-1),
)
