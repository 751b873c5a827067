"""Sets the number of threads of a rank to its share of the cores."""

from analyzers.diagnosis import Wall
from policies.changes.fix import Claim, Fix, KnobChanges, Page
from policies.changes.matching import moves
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return None if situation.on_cpu else "ranks compute on a GPU"


def _changes(situation: Situation) -> list[KnobChanges]:
    now = situation.knob("threads_per_rank") or 1
    options = [{"threads_per_rank": threads} for threads in (now * 2, now // 2) if threads >= 1]
    return [change for change in options if not situation.oversubscribes(situation.recipe.replace(change))]


FIX = Fix(
    name="threads",
    title="another number of threads per rank",
    page=Page(
        summary="Threads of a rank: as many as its share of the cores.",
        what="`threads_per_rank`, the threads a rank computes with on a CPU.",
        shows="compute far below what the machine's cores can do, or ranks contending for the same cores.",
        costs="nothing, up to the number of cores; more threads than cores slow all ranks down.",
        not_when="on GPUs, where ranks do not compute on the host.",
        source="PyTorch documentation, CPU threading and TorchScript inference (threads above the cores contend).",
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.COMPUTE, fraction=0.5, source="two threads where one was: at most half of the compute time"),
    ),
    knobs=("threads_per_rank",),
    matches=moves("threads_per_rank"),
    precondition=_precondition,
    changes=_changes,
    chance=0.5,
)
