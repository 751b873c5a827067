"""Splits each rank's stage into several smaller ones, with send/recv overlapped."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import with_vpp
from policies.changes.fix import BUBBLE, Claim, Fix, KnobChanges, Page
from policies.changes.matching import grows
from policies.situation import Situation
from policies.trial import Phase
from trainer.recipe.layout import layout_of


def _precondition(situation: Situation) -> str | None:
    if situation.knob("pipeline_model_parallel_size") == 1:
        return "PP is 1"
    return "the pipeline is interleaved" if layout_of(situation.recipe).vpp > 1 else None


def _changes(situation: Situation) -> list[KnobChanges]:
    return [change for chunks in (2, 4, 3) for change in with_vpp(situation.recipe, chunks)]


FIX = Fix(
    name="interleaved_pipeline",
    title="an interleaved pipeline",
    page=Page(
        summary="Interleaved pipeline: several smaller stages per rank, with send/recv overlapped.",
        what="`virtual_pipeline_model_parallel_size` at 2, 4 or 3 with `overlap_p2p_comm`.",
        shows="bubble and PP send/recv exposed.",
        costs="more send/recv, somewhat more activations in flight: those of PP·(1 + (PP-1)/(PP·VPP)) micro batches.",
        not_when="PP is 1, there are fewer layers than stages, or fewer micro batches than stages.",
        source="arXiv 2603.07685 section 9.1 (PP with VPP from PP 2 on, a middle value): the bubble divides by VPP.",
    ),
    phases=(Phase.SCALE, Phase.PROFILE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=BUBBLE,
            fraction=0.5,
            source="the bubble divides by VPP: with 2 chunks per rank it is half as long",
        ),
    ),
    knobs=("virtual_pipeline_model_parallel_size",),
    matches=grows("virtual_pipeline_model_parallel_size"),
    precondition=_precondition,
    changes=_changes,
    chance=0.7,
)
