"""Rules of pipeline stages: equal layers per stage, interleaving, enough micro batches to fill the pipeline."""

from trainer.recipe.layout import grid_fits, layer_counts_of_ranks, layout_of
from trainer.recipe.predicates import Test, above_one, all_of, among, any_of, interleaved, negated, off, on
from trainer.recipe.rules.examples import PIPELINE
from trainer.recipe.rules.nearest import (
    LAYOUT,
    PP,
    UNEVEN,
    VPP,
    chunks,
    closest,
    divisors,
    no_interleaving,
    no_uneven,
    stages,
)
from trainer.recipe.rules.rule import LM_AND_BRIDGE, MEGATRON_LM, FindingKind, Rule, Suggestion, example, fixed
from trainer.recipe.settings import Settings

GROUP = "microbatch_group_size_per_vp_stage"
uneven: Test = any_of(*map(on, UNEVEN))


def _no_chunks(recipe: Settings) -> Suggestion:
    """Returns no interleaving; also no pipeline layout if it is what interleaves."""
    layout: Suggestion = {LAYOUT: None} if recipe.knob(LAYOUT) else {}
    return layout | no_interleaving(recipe)


def _even(recipe: Settings, pp: int) -> bool:
    extra = sum(map(recipe.knob, UNEVEN[2:]))
    return bool((recipe.architecture.num_layers + extra) % pp == 0)


def _middle_uneven(recipe: Settings) -> bool:
    if layout_of(recipe).pp == 1:
        written = [recipe.knob(name) for name in UNEVEN[:2] if recipe.knob(name)]
        return written != [recipe.architecture.num_layers]  # a single stage has no layers between first and last
    counts = layer_counts_of_ranks(recipe)
    return sum(counts) != recipe.architecture.num_layers or min(counts) < 1


def _chunks_uneven(recipe: Settings) -> bool:
    extra = [0] * layout_of(recipe).pp
    extra[0] += recipe.knob(UNEVEN[2])
    extra[-1] += recipe.knob(UNEVEN[3])
    counts = zip(layer_counts_of_ranks(recipe), extra, strict=True)
    return any((layers + more) % layout_of(recipe).vpp for layers, more in counts)


def _group(recipe: Settings) -> int:
    return int(recipe.knob(GROUP) or layout_of(recipe).pp)


def _schedule_broken(recipe: Settings) -> bool:
    group, batches, pp = _group(recipe), recipe.num_microbatches, layout_of(recipe).pp
    return interleaved(recipe) and pp > 1 and grid_fits(recipe) and not _fills(batches, group, pp)


def _fills(batches: int, group: int, pp: int) -> bool:
    return pp <= group <= batches and not 0 < batches % group < pp


def _fill(recipe: Settings) -> Suggestion:
    """Suggests removing the group size if it is what breaks the schedule; else the nearest micro batch that leaves
    enough micro batches; else no interleaving."""
    pp, rows = layout_of(recipe).pp, recipe.training.global_batch_size // recipe.data_parallel_size
    if recipe.knob(GROUP) and _fills(recipe.num_microbatches, pp, pp):
        return {GROUP: None}
    sizes = [size for size in divisors(rows) if _fills(rows // size, _group(recipe), pp)]
    if sizes:
        return {"micro_batch_size": closest(recipe.training.micro_batch_size, sizes)}
    return no_interleaving(recipe)


ROWS = (
    Rule(
        id="layers-over-pp",
        knobs=(PP, LAYOUT),
        broken=all_of(
            negated(on(LAYOUT)), negated(any_of(*map(on, UNEVEN[:2]))), lambda r: not _even(r, layout_of(r).pp)
        ),
        message="{num_layers} layers do not divide over PP {pp}",
        nearest=stages,
        source="megatron/core/transformer/transformer_block.py:155; megatron/training/arguments.py:998",
        breaking=example(model={"num_layers": 7, "moe_layer_freq": 1}, pipeline_model_parallel_size=2),
        passing=example(
            model={"num_layers": 7, "moe_layer_freq": 1},
            pipeline_model_parallel_size=2,
            account_for_loss_in_pipeline_split=True,
        ),
    ),
    Rule(
        id="uneven-stages",
        knobs=UNEVEN[:2],
        broken=all_of(negated(on(LAYOUT)), any_of(*map(on, UNEVEN[:2])), _middle_uneven),
        message="{num_layers} layers over PP {pp} with {num_layers_in_first_pipeline_stage} in the first stage and "
        "{num_layers_in_last_pipeline_stage} in the last leave the middle ones uneven",
        nearest=no_uneven,
        source="transformer_config.py:2351",
        breaking=example(
            expert_model_parallel_size=4, pipeline_model_parallel_size=4, num_layers_in_first_pipeline_stage=1
        ),
        passing=example(
            expert_model_parallel_size=4, pipeline_model_parallel_size=4, num_layers_in_first_pipeline_stage=2
        ),
    ),
    Rule(
        id="vpp-needs-pp",
        knobs=(VPP, PP),
        broken=all_of(interleaved, negated(above_one(PP))),
        message="VPP {vpp} without a pipeline (PP 1)",
        nearest=_no_chunks,
        source="megatron/core/parallel_state.py:830",
        breaking=example(virtual_pipeline_model_parallel_size=2, overlap_p2p_comm=True),
        passing=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, overlap_p2p_comm=True),
    ),
    Rule(
        id="layers-over-vpp",
        knobs=(VPP, LAYOUT),
        broken=all_of(negated(on(LAYOUT)), interleaved, _chunks_uneven),
        message="the layers of a stage do not divide into VPP {vpp} chunks ({num_layers} layers over PP {pp})",
        nearest=chunks,
        source="megatron/core/transformer/transformer_block.py:178",
        breaking=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=3, overlap_p2p_comm=True),
        passing=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=4, overlap_p2p_comm=True),
    ),
    Rule(
        id="p2p-overlap-needs-vpp",
        knobs=("overlap_p2p_comm", VPP),
        broken=all_of(on("overlap_p2p_comm"), above_one(PP), negated(interleaved)),
        message="overlap_p2p_comm without interleaving: the plain 1F1B schedule refuses it",
        nearest=fixed(overlap_p2p_comm=False),
        source="megatron/core/pipeline_parallel/schedules.py:2183",
        breaking=example(pipeline_model_parallel_size=2, overlap_p2p_comm=True),
        passing=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, overlap_p2p_comm=True),
    ),
    Rule(
        id="p2p-overlap-idle",
        kind=FindingKind.AUTOSET,
        binds=LM_AND_BRIDGE,
        knobs=("overlap_p2p_comm", PP),
        broken=all_of(on("overlap_p2p_comm"), negated(above_one(PP))),
        message="overlap_p2p_comm without a pipeline: the frameworks set it to false",
        nearest=fixed(overlap_p2p_comm=False),
        source="megatron/training/arguments.py:1012; src/megatron/bridge/training/comm_overlap.py:456",
        breaking=example(overlap_p2p_comm=True),
        passing=example(**PIPELINE),
    ),
    Rule(
        id="vpp-one",
        kind=FindingKind.AUTOSET,
        binds=MEGATRON_LM,
        knobs=(VPP,),
        broken=among(VPP, 1),
        message="VPP 1 is not interleaved: Megatron-LM sets it to null",
        nearest=fixed(virtual_pipeline_model_parallel_size=None),
        source="megatron/training/arguments.py:847",
        breaking=example(virtual_pipeline_model_parallel_size=1),
        passing=example(**PIPELINE),
    ),
    Rule(
        id="vpp-two-stages",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        knobs=(VPP, PP, "overlap_p2p_comm"),
        broken=all_of(interleaved, among(PP, 2), off("overlap_p2p_comm")),
        message="interleaving over PP 2 without overlap_p2p_comm: Megatron-LM needs more than two stages then; "
        "Megatron-Bridge switches the overlap on",
        nearest=fixed(overlap_p2p_comm=True),
        source="megatron/training/arguments.py:1008",
        breaking=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2),
        passing=example(**PIPELINE),
    ),
    Rule(
        id="vpp-without-overlap",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        knobs=(VPP, PP, "overlap_p2p_comm"),
        broken=all_of(interleaved, above_one(PP), negated(among(PP, 2)), off("overlap_p2p_comm")),
        message="chunks without overlap_p2p_comm: bursts and exports wait for every send between stages; "
        "the frameworks overlap it by default",
        nearest=fixed(overlap_p2p_comm=True),
        source="megatron/training/arguments.py:2234 (0.16.1), --no-overlap-p2p-communication",
        breaking=example(
            expert_model_parallel_size=4, pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=2
        ),
        passing=example(
            expert_model_parallel_size=4,
            pipeline_model_parallel_size=4,
            virtual_pipeline_model_parallel_size=2,
            overlap_p2p_comm=True,
        ),
    ),
    Rule(
        id="interleaving-filled",
        knobs=("micro_batch_size", VPP, GROUP),
        broken=_schedule_broken,
        message="{num_microbatches} micro batches do not fill the interleaved schedule of PP {pp}: they must form "
        "groups of at least PP, the last one too",
        nearest=_fill,
        source="megatron/core/pipeline_parallel/schedules.py:1161",
        breaking=example(
            expert_model_parallel_size=4,
            pipeline_model_parallel_size=4,
            virtual_pipeline_model_parallel_size=2,
            overlap_p2p_comm=True,
            micro_batch_size=8,
        ),
        passing=example(
            expert_model_parallel_size=4,
            pipeline_model_parallel_size=4,
            virtual_pipeline_model_parallel_size=2,
            overlap_p2p_comm=True,
            micro_batch_size=4,
        ),
    ),
)
