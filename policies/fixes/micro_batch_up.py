"""Uses a larger micro batch: fewer, larger kernels and collectives."""

from analyzers.diagnosis import Wall
from policies.changes.fix import DP, EP, LAUNCHES, TP, Claim, Fix, KnobChanges, Page
from policies.changes.matching import grows
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    if situation.recipe.num_microbatches <= 1:
        return "the step is one micro batch already"
    return None


def _changes(situation: Situation) -> list[KnobChanges]:
    now = situation.knob("micro_batch_size")
    return [{"micro_batch_size": now * factor} for factor in (4, 2) if situation.recipe.num_microbatches >= factor]


FIX = Fix(
    name="micro_batch_up",
    title="a larger micro batch",
    page=Page(
        summary="Larger micro batch: fewer, larger kernels and collectives for the same global batch.",
        what="`micro_batch_size` times 4 or 2, global batch unchanged, so fewer micro batches per step.",
        shows=(
            "idle time waiting for launches (host), small grouped GEMMs below the attainable rate (compute), many "
            "small collectives."
        ),
        costs="activations grow with it; with pipeline parallelism fewer micro batches mean a larger bubble.",
        not_when="the global batch does not divide, or memory has no room.",
        source=(
            "arXiv 2603.07685 section 9.1 (fewer launches by raising the micro batch); Megatron-Bridge 067f987d, "
            "skills/nemo-mbridge-perf-moe-vlm-training card.yaml:90 (micro batch 1 to 4 about doubles a launch-bound "
            "VLM); own measurement on CPUs: EP2, micro batch 1 to 4 cuts the step by 28 %."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.HOST,
            parts=LAUNCHES,
            fraction=0.6,
            source="half or a quarter of the launches per step",
        ),
        Claim(wall=Wall.COMPUTE, fraction=0.3, source="grouped GEMMs grow with the tokens an expert gets"),
        Claim(
            wall=Wall.COMMUNICATION,
            parts=(*EP, *TP, *DP),
            fraction=0.2,
            source="fewer collectives of the same total volume: latency is saved",
        ),
    ),
    knobs=("micro_batch_size",),
    matches=grows("micro_batch_size"),
    precondition=_precondition,
    changes=_changes,
    chance=0.6,
)
