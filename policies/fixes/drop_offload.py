"""Brings optimizer state or activations back to the device."""

from analyzers.diagnosis import Wall
from policies.changes.fix import COPIES, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import shrinks, turns_off
from policies.situation import Situation
from policies.trial import Phase
from trainer.recipe import Recipe

SWITCHES = ("optimizer_cpu_offload", "fine_grained_activation_offloading", "cpu_offloading")
FRACTION = "optimizer_offload_fraction"


def _precondition(situation: Situation) -> str | None:
    return None if any(situation.knob(switch) for switch in SWITCHES) else "nothing is offloaded"


def _changes(situation: Situation) -> list[KnobChanges]:
    on = [switch for switch in SWITCHES if situation.knob(switch)]
    one_off: list[KnobChanges] = [{switch: False} for switch in on]
    fraction = situation.knob(FRACTION)
    if "optimizer_cpu_offload" in on and fraction > 0.25:
        one_off.append({FRACTION: fraction / 2})
    return one_off


def _matches(before: Recipe, after: Recipe) -> bool:
    """Returns true if a kind of offload is turned off, or a smaller part of the optimizer is offloaded."""
    both_on = before.knob("optimizer_cpu_offload") and after.knob("optimizer_cpu_offload")
    return turns_off(*SWITCHES)(before, after) or bool(both_on and shrinks(FRACTION)(before, after))


FIX = Fix(
    name="drop_offload",
    title="less offload",
    page=Page(
        summary="Less offload: bring optimizer state or activations back to the device.",
        what="a smaller `optimizer_offload_fraction`, or no offload, where memory has room.",
        shows="exposed copies between host and device, the optimizer step on the host.",
        costs="the memory that offload saved.",
        not_when="nothing is offloaded.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-cpu-offloading card.yaml:131 (25 % offload: 996 to "
            "1871 ms)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(Claim(wall=Wall.MEMORY, parts=COPIES, fraction=1.0, source="what is not offloaded is not copied"),),
    knobs=(*SWITCHES, FRACTION),
    matches=_matches,
    precondition=_precondition,
    changes=_changes,
    chance=0.9,
    proof=Proof(measure="copy", moves=-1),
)
