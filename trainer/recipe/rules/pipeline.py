"""Pipeline stages: layers that come out even, interleaving, explicit layouts, micro batches enough to fill them."""

from trainer.recipe.layout import layers_by_stage, layout_of, pipeline_stages, stages_of
from trainer.recipe.predicates import Test, above_one, all_of, any_of, negated, on
from trainer.recipe.rules.nearest import PP, VPP, chunks, closest, divisors, no_interleaving, size_where
from trainer.recipe.rules.rule import Rule, Suggestion, example, fixed
from trainer.recipe.schema import Recipe

LAYOUT = "pipeline_model_parallel_layout"
GROUP = "microbatch_group_size_per_vp_stage"
UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
_uneven: Test = any_of(*map(on, UNEVEN))


def _interleaved(recipe: Recipe) -> bool:
    return layout_of(recipe).vpp > 1


def _no_uneven(recipe: Recipe) -> Suggestion:
    return {name: None if name.startswith("num") else False for name in UNEVEN if recipe.knob(name)}


def _even(recipe: Recipe, pp: int) -> bool:
    extra = sum(map(recipe.knob, UNEVEN[2:]))
    return bool((recipe.architecture.num_layers + extra) % pp == 0)


def _middle_uneven(recipe: Recipe) -> bool:
    counts = layers_by_stage(recipe)
    return sum(counts) != recipe.architecture.num_layers or min(counts) < 1


def _chunks_uneven(recipe: Recipe) -> bool:
    extra = [0] * layout_of(recipe).pp
    extra[0] += recipe.knob(UNEVEN[2])
    extra[-1] += recipe.knob(UNEVEN[3])
    counts = zip(layers_by_stage(recipe), extra, strict=True)
    return any((layers + more) % layout_of(recipe).vpp for layers, more in counts)


def _layout_text_broken(recipe: Recipe) -> bool:
    try:
        stages = pipeline_stages(recipe.knob(LAYOUT))
    except ValueError:
        return True
    text, model = "".join(stages), recipe.architecture
    counts = (text.count("t"), text.count("m"), text.count("E"), text.count("L"))
    return (
        counts != (model.num_layers, model.mtp_num_layers or 0, 1, 1)
        or text[0] != "E"
        or text[-1] != "L"
        or "mt" in text
    )


def _readable_layout(recipe: Recipe) -> bool:
    return bool(recipe.knob(LAYOUT)) and not _layout_text_broken(recipe)


def _stages(recipe: Recipe) -> int:
    return len(stages_of(recipe))


def _group(recipe: Recipe) -> int:
    return int(recipe.knob(GROUP) or layout_of(recipe).pp)


def _schedule_broken(recipe: Recipe) -> bool:
    group, batches, pp = _group(recipe), recipe.num_microbatches, layout_of(recipe).pp
    return _interleaved(recipe) and pp > 1 and not _fills(batches, group, pp)


def _fills(batches: int, group: int, pp: int) -> bool:
    return pp <= group <= batches and not 0 < batches % group < pp


def _fill(recipe: Recipe) -> Suggestion:
    """The largest micro batch that leaves enough micro batches; else no interleaving."""
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
        knobs=(PP,),
        broken=all_of(
            negated(on(LAYOUT)), negated(any_of(*map(on, UNEVEN[:2]))), lambda r: not _even(r, layout_of(r).pp)
        ),
        message="{num_layers} layers do not divide over PP {pp}",
        nearest=size_where(PP, _even),
        source="megatron/training/arguments.py:998",
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
        broken=all_of(negated(on(LAYOUT)), any_of(*map(on, UNEVEN[:2])), above_one(PP), _middle_uneven),
        message="{num_layers} layers over PP {pp} with {num_layers_in_first_pipeline_stage} in the first stage and "
        "{num_layers_in_last_pipeline_stage} in the last leave the middle ones uneven",
        nearest=_no_uneven,
        source="transformer_config.py:2351",
        breaking=example(
            expert_model_parallel_size=4, pipeline_model_parallel_size=4, num_layers_in_first_pipeline_stage=1
        ),
        passing=example(
            expert_model_parallel_size=4, pipeline_model_parallel_size=4, num_layers_in_first_pipeline_stage=2
        ),
    ),
    Rule(
        id="one-way-to-split",
        knobs=(LAYOUT, *UNEVEN),
        broken=any_of(all_of(on(LAYOUT), _uneven), all_of(any_of(*map(on, UNEVEN[:2])), any_of(*map(on, UNEVEN[2:])))),
        message="the pipeline is split in more than one way: a layout, first and last stages, and counting embedding "
        "and loss as layers exclude each other",
        nearest=_no_uneven,
        source="transformer_config.py:2236",
        breaking=example(
            pipeline_model_parallel_size=2,
            pipeline_model_parallel_layout="Et*4|t*4L",
            account_for_embedding_in_pipeline_split=True,
            account_for_loss_in_pipeline_split=True,
        ),
        passing=example(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*4|t*4L"),
    ),
    Rule(
        id="vpp-needs-pp",
        knobs=(VPP, PP),
        broken=all_of(above_one(VPP), negated(above_one(PP))),
        message="VPP {vpp} without a pipeline (PP 1)",
        nearest=no_interleaving,
        source="megatron/core/parallel_state.py:830",
        breaking=example(virtual_pipeline_model_parallel_size=2, overlap_p2p_comm=True),
        passing=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, overlap_p2p_comm=True),
    ),
    Rule(
        id="layers-over-vpp",
        knobs=(VPP,),
        broken=all_of(negated(on(LAYOUT)), _interleaved, _chunks_uneven),
        message="the layers of a stage do not divide into VPP {vpp} chunks ({num_layers} layers over PP {pp})",
        nearest=chunks,
        source="megatron/core/transformer/transformer_block.py:178",
        breaking=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=3, overlap_p2p_comm=True),
        passing=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=4, overlap_p2p_comm=True),
    ),
    Rule(
        id="layout-text",
        knobs=(LAYOUT,),
        broken=all_of(on(LAYOUT), _layout_text_broken),
        message="layout {pipeline_model_parallel_layout} is not: one E first, {num_layers} t, then the "
        "{mtp_num_layers} m of the model, one L last",
        nearest=fixed(pipeline_model_parallel_layout=None),
        source="pipeline_parallel_layer_layout.py:97",
        breaking=example(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*4|t*3L"),
        passing=example(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*3|t*5L"),
    ),
    Rule(
        id="layout-stages",
        knobs=(LAYOUT, PP),
        broken=all_of(_readable_layout, lambda recipe: _stages(recipe) % layout_of(recipe).pp != 0),
        message="the layout's stages are no multiple of PP {pp}",
        nearest=fixed(pipeline_model_parallel_layout=None),
        source="megatron/training/arguments.py:946",
        breaking=example(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*4|t*3|tL"),
        passing=example(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*2|t*2|t*2|t*2L"),
    ),
    Rule(
        id="layout-chunks",
        knobs=(LAYOUT, VPP),
        broken=all_of(
            _readable_layout,
            on(VPP),
            lambda recipe: _stages(recipe) != layout_of(recipe).pp * recipe.knob(VPP),
        ),
        message="the layout's stages are not PP {pp} · VPP {virtual_pipeline_model_parallel_size}",
        nearest=fixed(virtual_pipeline_model_parallel_size=None),
        source="transformer_config.py:2281",
        breaking=example(
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=4,
            pipeline_model_parallel_layout="Et*2|t*2|t*2|t*2L",
        ),
        passing=example(
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
            pipeline_model_parallel_layout="Et*2|t*2|t*2|t*2L",
        ),
    ),
    Rule(
        id="p2p-overlap-needs-vpp",
        knobs=("overlap_p2p_comm", VPP),
        broken=all_of(on("overlap_p2p_comm"), above_one(PP), negated(_interleaved)),
        message="overlap_p2p_comm without interleaving: the plain 1F1B schedule refuses it",
        nearest=fixed(overlap_p2p_comm=False),
        source="megatron/core/pipeline_parallel/schedules.py:2183",
        breaking=example(pipeline_model_parallel_size=2, overlap_p2p_comm=True),
        passing=example(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, overlap_p2p_comm=True),
    ),
    Rule(
        id="interleaving-filled",
        knobs=("micro_batch_size", VPP, GROUP),
        broken=_schedule_broken,
        message="{num_microbatches} micro batches do not fill the interleaved schedule of PP {pp}: they must make "
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
