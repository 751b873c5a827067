"""Binds a rank's threads to its own cores."""

from analyzers.diagnosis import Wall
from policies.changes.fix import Claim, Fix, KnobChanges, Page
from policies.changes.matching import becomes
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    if situation.recipe.world_size == situation.recipe.cluster.nodes:
        return "a node has one rank"
    return "ranks are bound to their cores" if situation.knob("cpu_affinity") != "none" else None


def _changes(situation: Situation) -> list[KnobChanges]:
    return [{"cpu_affinity": "spread"}]


FIX = Fix(
    name="cpu_affinity",
    title="binding ranks to their cores",
    page=Page(
        summary="CPU affinity: bind a rank's threads to its own cores.",
        what="`cpu_affinity: spread` in a recipe, `torchrun --numa-binding=exclusive` in a launch script: each rank "
        "gets its own cores of the node.",
        shows="host-bound gaps that vary from step to step and rank to rank.",
        costs="nothing.",
        not_when="ranks are bound already, or a node has one rank.",
        source="GB200 guide of Megatron-LM eb0783b6d356:219 (binding near the PCIe root: 691 to 762 TFLOP/s, +10.2 %).",
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(Claim(wall=Wall.HOST, fraction=0.4, source="+10.2 % on a host-bound GB200 run"),),
    knobs=("cpu_affinity",),
    matches=becomes("cpu_affinity", lambda value: value not in (None, "none")),
    precondition=_precondition,
    changes=_changes,
    chance=0.6,
)
