"""Keeps the activations that memory has room for."""

from analyzers.diagnosis import Wall
from policies.changes.fix import RECOMPUTE, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import less_recompute
from policies.changes.recompute import NONE, lighter_with_room
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return None if situation.knob("recompute_granularity") else "nothing is recomputed"


def _changes(situation: Situation) -> list[KnobChanges]:
    return lighter_with_room(situation.recipe)


FIX = Fix(
    name="drop_recompute",
    title="less recompute",
    page=Page(
        summary="Drop recompute: keep the activations that memory has room for.",
        what=(
            "the lightest recompute that is predicted to fit: none, then selective, instead of what is on; where none "
            "fits, with a smaller micro batch."
        ),
        shows="time inside recompute in the trace (the memory wall), with the hottest rank below its limit.",
        costs="memory, all of what recompute saved; P(fits) says whether there is room.",
        not_when="nothing is recomputed.",
        source=(
            "GB200 guide of Megatron-LM (eb0783b6d356, docs/discussions/deepseek-v3-gb200-optimization): dropping the "
            "MLA up-projection's recompute 566 to 611 TFLOP/s (+7.9 %); arXiv 2603.07685 section 4.1.4 (full costs "
            "about 33 %)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.MEMORY,
            parts=RECOMPUTE,
            fraction=1.0,
            source="recomputed work disappears entirely; what remains after a partial drop shows in the next trace",
        ),
    ),
    knobs=tuple(NONE),
    matches=less_recompute,
    precondition=_precondition,
    changes=_changes,
    chance=0.9,
    proof=Proof(measure="recompute", moves=-1),
)
