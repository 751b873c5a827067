"""Uses a smaller micro batch: fewer tokens in flight."""

from analyzers.diagnosis import Wall
from policies.changes.fix import BUBBLE, Claim, Fix, KnobChanges, Page
from policies.changes.matching import shrinks
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return "the micro batch is 1" if situation.knob("micro_batch_size") == 1 else None


def _changes(situation: Situation) -> list[KnobChanges]:
    sizes = []
    size = situation.knob("micro_batch_size")
    while (size := size // 2) >= 1:
        sizes.append({"micro_batch_size": size})
    return sizes


FIX = Fix(
    name="micro_batch_down",
    title="a smaller micro batch",
    page=Page(
        summary="Smaller micro batch: fewer tokens in flight.",
        what="`micro_batch_size` halved, down to 1; the global batch stays, so more micro batches per step.",
        shows="out of memory with activations the largest part; or a pipeline bubble with few micro batches.",
        costs=(
            "smaller kernels and more launches: up to twice the time when launch-bound. Activations shrink with the "
            "micro batch."
        ),
        not_when="the micro batch is 1.",
        source=(
            "arXiv 2603.07685 section 3.1 (activations are 66 % of DeepSeek-V3's memory and scale with it); own "
            "measurement on CPUs: EP2, micro batch 4 to 1 costs 39 %."
        ),
    ),
    phases=(Phase.FIT, Phase.PROFILE, Phase.RETUNE),
    fit_order=40,
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=BUBBLE,
            fraction=0.5,
            source="the bubble is (PP-1)/micro batches of the work: twice the micro batches, half the bubble",
        ),
    ),
    knobs=("micro_batch_size",),
    matches=shrinks("micro_batch_size"),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.08,
    chance=0.4,
)
