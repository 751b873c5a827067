"""Brings optimizer state or activations back to the device."""

from analyzers.diagnosis import Wall
from policies.changes.fix import COPIES, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import turns_off
from policies.situation import Situation
from policies.trial import Phase

SWITCHES = ("optimizer_cpu_offload", "fine_grained_activation_offloading", "cpu_offloading")


def _precondition(situation: Situation) -> str | None:
    return None if any(situation.knob(switch) for switch in SWITCHES) else "nothing is offloaded"


def _changes(situation: Situation) -> list[KnobChanges]:
    on = [switch for switch in SWITCHES if situation.knob(switch)]
    one_off: list[KnobChanges] = [{switch: False} for switch in on]
    fraction = situation.knob("optimizer_offload_fraction")
    if "optimizer_cpu_offload" in on and fraction > 0.25:
        one_off.append({"optimizer_offload_fraction": fraction / 2})
    return one_off


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
    knobs=SWITCHES,
    matches=turns_off(*SWITCHES),
    precondition=_precondition,
    changes=_changes,
    chance=0.9,
    proof=Proof(measure="copy", moves=-1),
)
