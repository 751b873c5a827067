"""Keeps expert parallelism inside one NVLink domain."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import DEGREES, smaller, with_ep
from policies.changes.fix import EP, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.switch import experts_only, gpu_only
from policies.situation import Situation
from policies.trial import Phase
from trainer.recipe import Recipe


def _precondition(situation: Situation) -> str | None:
    elsewhere = gpu_only(situation) or experts_only(situation)
    if elsewhere:
        return elsewhere
    ranks, domain = _span(situation.recipe), situation.recipe.hardware.nvlink_domain_gpus
    return f"the {ranks} ranks of an expert group share a domain of {domain}" if ranks <= domain else None


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    domain = recipe.hardware.nvlink_domain_gpus
    inside = [size for size in smaller(recipe, "ep") if size * recipe.expert_tensor_parallel_size <= domain]
    return [change for size in reversed(inside) for change in with_ep(recipe, size)]


def _matches(before: Recipe, after: Recipe) -> bool:
    """Returns true if EP shrinks from beyond one NVLink domain to within one.

    False for CPU ranks, which have no domain.
    """
    if after.hardware.is_cpu:
        return False
    domain = after.hardware.nvlink_domain_gpus
    crosses = _span(before) > domain >= _span(after)
    return crosses and bool(after.knob(DEGREES["ep"]) < before.knob(DEGREES["ep"]))


def _span(recipe: Recipe) -> int:
    """Returns the number of GPUs in one dispatch: EP times ETP."""
    return int(recipe.knob(DEGREES["ep"])) * recipe.expert_tensor_parallel_size


FIX = Fix(
    name="expert_parallel_in_domain",
    title="expert parallelism inside the fast domain",
    page=Page(
        summary="Expert parallelism inside the fast domain: dispatch over NVLink only.",
        what="the largest `expert_model_parallel_size` whose ranks, times expert TP, share one NVLink domain.",
        shows="EP dispatch and combine exposed, with an EP group that spans domains.",
        costs="more experts per rank, so weights, gradients and optimizer state grow.",
        not_when="the group is inside one domain already; on CPUs; or the experts do not fit.",
        source=(
            "arXiv 2603.07685 section 9.1 (EP x TP inside the NVLink domain) and section 3.2.4 (between nodes 5 to 10 "
            "times slower); section 9.2.2 (EP64 over 8 nodes: nearly half of the step is dispatch)."
        ),
    ),
    phases=(Phase.SCALE,),
    claims=(Claim(wall=Wall.COMMUNICATION, parts=EP, fraction=0.7, source="NVLink is 5 to 10 times the network"),),
    knobs=(DEGREES["ep"],),
    matches=_matches,
    precondition=_precondition,
    changes=_changes,
    chance=0.6,
    proof=Proof(measure="ep_exposed", moves=-1),
)
