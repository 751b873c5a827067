"""Uses fewer pipeline stages, for a smaller bubble."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import DEGREES, smaller, with_pp
from policies.changes.fix import BUBBLE, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import shrinks
from policies.changes.switch import pipelines_only
from policies.situation import Situation
from policies.trial import Phase


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in smaller(recipe, "pp") for change in with_pp(recipe, size)]


FIX = Fix(
    name="less_pipeline_parallel",
    title="less pipeline parallelism",
    page=Page(
        summary="Less pipeline parallelism: fewer stages, smaller bubble.",
        what="the smallest `pipeline_model_parallel_size` that is predicted to fit.",
        shows="exposed PP send/recv and bubble, memory to spare.",
        costs="weights, gradients and optimizer state of a rank grow by the factor PP shrinks.",
        not_when="PP is 1, or the larger share of the model does not fit.",
        source=(
            "arXiv 2603.07685 section 9.1 (least model parallelism that fits); Megatron-Bridge 067f987d, "
            "skills/nemo-mbridge-perf-memory-tuning card.yaml:151 (PP 8 against 4: -5.9 %)."
        ),
    ),
    phases=(Phase.SCALE, Phase.PROFILE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=BUBBLE,
            fraction=0.9,
            source="fewer stages: the bubble (PP-1)/micro batches falls, at PP=1 to nothing",
        ),
    ),
    knobs=(DEGREES["pp"],),
    matches=shrinks(DEGREES["pp"]),
    precondition=pipelines_only,
    changes=_changes,
    chance=0.6,
    proof=Proof(measure="pp_busy", moves=-1),
)
