"""Changes a degree of parallelism together with the knobs that must follow it.

Each function lists knob changes in order of preference. `trainer.recipe.rules` decides which are legal; the changes
here are those made together (sequence parallel with TP, VPP and the split of the layers with PP, the expert tensor
degree with EP).
"""

from __future__ import annotations

from policies.changes.fix import KnobChanges
from trainer.estimate.plan.stages import balanced_layouts
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of, pipeline_stages
from trainer.recipe.rules.nearest import LAYOUT, UNEVEN, VPP, no_uneven

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}


def larger(recipe: Recipe, degree: str) -> list[int]:
    """Returns larger values of a degree that the number of ranks allows, the nearest first: powers of two times the
    current one."""
    now = int(recipe.knob(DEGREES[degree]))
    sizes = []
    while (now := now * 2) <= recipe.world_size:
        sizes.append(now)
    return sizes


def smaller(recipe: Recipe, degree: str) -> list[int]:
    """Returns smaller values of a degree, the smallest first, since less model parallelism is preferred."""
    now = int(recipe.knob(DEGREES[degree]))
    return [size for size in range(1, now) if now % size == 0]


def with_tp(recipe: Recipe, size: int) -> list[KnobChanges]:
    """Returns the changes to this TP.

    Sequence parallel follows TP, as MoE with TP requires; first with experts unsplit, then with ETP equal to TP.
    """
    changes: KnobChanges = {DEGREES["tp"]: size, "sequence_parallel": size > 1}
    if size == 1:
        changes["tp_comm_overlap"] = False
    if recipe.architecture.num_moe_experts is None:
        return [changes]
    return [
        changes | {"expert_tensor_parallel_size": 1},
        changes | {"expert_tensor_parallel_size": size},
    ]


def with_pp(recipe: Recipe, size: int) -> list[KnobChanges]:
    """Returns the changes to this PP: first with VPP kept, then without VPP and the overlap that needs it."""
    plain: KnobChanges = {DEGREES["pp"]: size, VPP: None, "overlap_p2p_comm": False}
    kept: KnobChanges = {DEGREES["pp"]: size}
    chunks = layout_of(recipe).vpp if size > 1 else 1
    options = [kept | split for split in splits(recipe, size, chunks)] if chunks > 1 else []
    return [*options, *(plain | split for split in splits(recipe, size, 1))]


def with_vpp(recipe: Recipe, chunks: int) -> list[KnobChanges]:
    """Returns the changes to an interleaved pipeline of `chunks` virtual stages per rank at the current PP."""
    changes: KnobChanges = {VPP: chunks, "overlap_p2p_comm": True}
    return [changes | split for split in splits(recipe, layout_of(recipe).pp, chunks)]


def splits(recipe: Recipe, pp: int, vpp: int) -> list[KnobChanges]:
    """Returns changes that split the layers into PP·VPP stages: evenly if they divide, else by a layout.

    A recipe that counts embedding and loss as layers, or has other first and last stages, keeps that if possible.
    """
    model = recipe.architecture
    even = model.num_layers % (pp * vpp) == 0
    texts = [None] if even else list(balanced_layouts(model, recipe.training.seq_length, pp=pp, vpp=vpp)[:1])
    changes: list[KnobChanges] = [{LAYOUT: text} if text != recipe.knob(LAYOUT) else {} for text in texts]
    if not any(recipe.knob(name) for name in UNEVEN):
        return changes
    return [{}, *(change | no_uneven(recipe) for change in changes)]


def even_cost_layouts(recipe: Recipe) -> list[KnobChanges]:
    """Returns the changes to pipeline layouts of even cost per stage; [] without a pipeline."""
    layout = layout_of(recipe)
    if layout.pp == 1:
        return []
    texts = balanced_layouts(recipe.architecture, recipe.training.seq_length, pp=layout.pp, vpp=layout.vpp)
    return [{LAYOUT: text, VPP: None} for text in texts if not _has_layout(recipe, text)]


def _has_layout(recipe: Recipe, text: str) -> bool:
    """Returns true if the recipe already has this layout, explicitly or by an even split."""
    if recipe.knob(LAYOUT) is not None or any(recipe.knob(name) for name in UNEVEN):
        return bool(text == recipe.knob(LAYOUT))
    return "m" not in text and len({stage.count("t") for stage in pipeline_stages(text)}) == 1


def with_ep(recipe: Recipe, size: int) -> list[KnobChanges]:
    """Returns the changes to this EP.

    EP=1 needs no dispatch, so its overlaps are turned off and expert TP is set to TP (otherwise expert replicas would
    drift apart).
    """
    if size > 1:
        return [{DEGREES["ep"]: size}, {DEGREES["ep"]: size, "expert_tensor_parallel_size": 1}]
    return [
        {
            DEGREES["ep"]: 1,
            "expert_tensor_parallel_size": recipe.knob(DEGREES["tp"]),
            "overlap_moe_expert_parallel_comm": False,
            "delay_wgrad_compute": False,
        }
    ]


def with_cp(recipe: Recipe, size: int) -> list[KnobChanges]:
    return [{DEGREES["cp"]: size}]
