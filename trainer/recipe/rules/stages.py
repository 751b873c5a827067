"""Rules of pipeline layouts: the text that assigns layers to stages, and only one way to split a model."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of, pipeline_stages, stages_of
from trainer.recipe.predicates import all_of, any_of, on
from trainer.recipe.rules.nearest import LAYOUT, PP, UNEVEN, VPP, no_uneven
from trainer.recipe.rules.pipeline import uneven
from trainer.recipe.rules.rule import MEGATRON_LM, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings


def _layout_text_broken(recipe: Settings) -> bool:
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


def _readable_layout(recipe: Settings) -> bool:
    return bool(recipe.knob(LAYOUT)) and not _layout_text_broken(recipe)


def _stages(recipe: Settings) -> int:
    return len(stages_of(recipe))


def _mtp_misplaced(recipe: Settings) -> bool:
    """Returns True if MTP layers are in several stages or in a chunk other than the last.

    Stage s is chunk s // PP of rank s % PP.
    """
    stages, now = stages_of(recipe), layout_of(recipe)
    if len(stages) % now.pp:
        return False  # another rule reports that
    holding = [stage for stage, text in enumerate(stages) if "m" in text]
    return len(holding) > 1 or any(stage // now.pp < now.vpp - 1 for stage in holding)


def _hybrid(recipe: Settings) -> bool:
    return recipe.architecture.hybrid_pattern is not None


ROWS = (
    Rule(
        id="hybrid-layout",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        knobs=(LAYOUT, VPP),
        broken=all_of(_hybrid, any_of(on(LAYOUT), on(VPP))),
        message="Megatron-LM takes neither a pipeline layout nor VPP with a hybrid model's layer pattern: the "
        "pattern's own | separators split the pipeline there",
        nearest=fixed(pipeline_model_parallel_layout=None, virtual_pipeline_model_parallel_size=None),
        source="megatron/training/arguments.py of 0.17.0 :662 to :682, of 0.19.0 :805 to :829",
        versions=SpecifierSet(">=0.17"),
        breaking=example(
            model={"hybrid": "MEM*MEM*"},
            engine="simulated",
            pipeline_model_parallel_size=2,
            pipeline_model_parallel_layout="Et*4|t*4L",
        ),
        passing=example(model={"hybrid": "MEM*MEM*"}, engine="simulated", pipeline_model_parallel_size=2),
    ),
    Rule(
        id="one-way-to-split",
        knobs=(LAYOUT, *UNEVEN),
        broken=any_of(all_of(on(LAYOUT), uneven), all_of(any_of(*map(on, UNEVEN[:2])), any_of(*map(on, UNEVEN[2:])))),
        message="the pipeline is split in more than one way: a layout, first and last stages, and counting embedding "
        "and loss as layers exclude each other",
        nearest=no_uneven,
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
        id="layout-text",
        knobs=(LAYOUT,),
        broken=all_of(on(LAYOUT), _layout_text_broken),
        message="layout {pipeline_model_parallel_layout} must have: one E first, {num_layers} t, then the "
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
        message="the layout's stages are not a multiple of PP {pp}",
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
        id="layout-mtp",
        knobs=(LAYOUT, PP),
        broken=all_of(_readable_layout, _mtp_misplaced),
        message="the layout's MTP layers must be in one stage, the last one of a pipeline rank, and not on the first "
        "rank of an interleaved pipeline",
        nearest=fixed(pipeline_model_parallel_layout=None),
        source="megatron/core/transformer/pipeline_parallel_layer_layout.py:125, :131, :134; "
        "multi_token_prediction.py:874",
        breaking=example(
            model={"mtp_num_layers": 2},
            pipeline_model_parallel_size=2,
            pipeline_model_parallel_layout="Et*2|t*2|t*4m|mL",
        ),
        passing=example(
            model={"mtp_num_layers": 1}, pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*4|t*4mL"
        ),
    ),
)
