"""Distributes layers over pipeline stages by what they cost."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import even_cost_layouts
from policies.changes.fix import STAGES, Claim, Fix, KnobChanges, Page
from policies.changes.matching import moves
from policies.changes.switch import pipelines_only
from policies.situation import Situation
from policies.trial import Phase


def _changes(situation: Situation) -> list[KnobChanges]:
    now = situation.knob("pipeline_model_parallel_layout")
    return [change for change in even_cost_layouts(situation.recipe) if change["pipeline_model_parallel_layout"] != now]


FIX = Fix(
    name="even_stages",
    title="even pipeline stages",
    page=Page(
        summary=(
            "Even stages: layers distributed over the pipeline by their cost, so that no stage has more to do than the "
            "others."
        ),
        what=(
            "`pipeline_model_parallel_layout` with the embedding, the loss and MTP each counted as the "
            "number of layers that costs as much."
        ),
        shows=(
            "one stage's ranks have more time of their own than the others', which wait for them in send and receive."
        ),
        costs="stages that hold more layers hold more weights and activations.",
        not_when="PP is 1, or the layers are distributed that way already.",
        source="arXiv 2603.07685 section 9.1 (the slowest stage sets the pace; flexible layouts).",
    ),
    phases=(Phase.SCALE, Phase.PROFILE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=STAGES,
            fraction=0.5,
            source="the step is as long as its slowest stage: whole layers can even out part of the difference",
        ),
    ),
    knobs=("pipeline_model_parallel_layout",),
    matches=moves("pipeline_model_parallel_layout"),
    precondition=pipelines_only,
    changes=_changes,
    chance=0.5,
)
