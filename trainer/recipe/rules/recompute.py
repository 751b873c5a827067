"""Rules of activation recompute: requirements of full and selective, number of layers, saved activations distributed
over TP."""

from typing import Any

from trainer.recipe.layout import layers_of_ranks
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    any_of,
    negated,
    off,
    on,
)
from trainer.recipe.rules.examples import DENSE, TP2
from trainer.recipe.rules.nearest import TP
from trainer.recipe.rules.rule import MEGATRON_LM, FindingKind, Rule, Suggestion, example, fixed
from trainer.recipe.settings import Settings

GRANULARITY = "recompute_granularity"
METHOD = "recompute_method"
LAYERS = "recompute_num_layers"
DISTRIBUTED = "distribute_saved_activations"
_full = among(GRANULARITY, "full")
_selective = among(GRANULARITY, "selective")
_DISTRIBUTED: dict[str, Any] = {
    "distribute_saved_activations": True,
    "tensor_model_parallel_size": 2,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def _chunks(recipe: Settings) -> list[int]:
    """Returns the number of layers of every chunk of every pipeline rank: recompute counts layers within a chunk."""
    return [len(layers) for rank in layers_of_ranks(recipe) for layers in rank]


def _most(recipe: Settings) -> int:
    return max(1, *_chunks(recipe))


def _groups_overrun(recipe: Settings) -> bool:
    group = recipe.knob(LAYERS)
    return bool(group) and any(layers % group for layers in _chunks(recipe))


def _group(recipe: Settings) -> Suggestion:
    """Returns the largest smaller number of layers that divides every chunk."""
    chunks = _chunks(recipe)
    fitting = [size for size in range(1, recipe.knob(LAYERS)) if not any(layers % size for layers in chunks)]
    return {LAYERS: max(fitting, default=1)}


ROWS = (
    Rule(
        id="full-needs-method",
        knobs=(GRANULARITY, METHOD),
        broken=all_of(_full, off(METHOD)),
        message="full recompute without recompute_method",
        nearest=fixed(recompute_method="uniform"),
        source="transformer_config.py:1916",
        breaking=example(recompute_granularity="full", recompute_num_layers=1),
        passing=example(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
    ),
    Rule(
        id="full-needs-layers",
        knobs=(GRANULARITY, LAYERS),
        broken=all_of(_full, off(LAYERS)),
        message="full recompute without recompute_num_layers",
        nearest=fixed(recompute_num_layers=1),
        source="transformer_config.py:1922",
        breaking=example(recompute_granularity="full", recompute_method="block"),
        passing=example(recompute_granularity="full", recompute_method="block", recompute_num_layers=4),
    ),
    Rule(
        id="recompute-layers-exist",
        kind=FindingKind.WARNING,
        knobs=(LAYERS,),
        broken=all_of(_full, among(METHOD, "block"), lambda recipe: (recipe.knob(LAYERS) or 0) > _most(recipe)),
        message="recompute_num_layers {recompute_num_layers} exceeds the layers of every chunk of the pipeline: all "
        "are recomputed",
        nearest=lambda recipe: {LAYERS: _most(recipe)},
        source="megatron/core/transformer/transformer_block.py: a layer is recomputed while its index is smaller",
        breaking=example(recompute_granularity="full", recompute_method="block", recompute_num_layers=9),
        passing=example(recompute_granularity="full", recompute_method="block", recompute_num_layers=8),
    ),
    Rule(
        id="selective-without-layers",
        knobs=(GRANULARITY, LAYERS, METHOD),
        broken=all_of(_selective, on(LAYERS)),
        message="selective recompute with recompute_num_layers {recompute_num_layers}, which belongs to full",
        nearest=fixed(recompute_num_layers=None),
        source="transformer_config.py:1931",
        breaking=example(recompute_granularity="selective", recompute_num_layers=1),
        passing=example(recompute_granularity="selective"),
    ),
    Rule(
        id="selective-without-method",
        binds=MEGATRON_LM,
        knobs=(GRANULARITY, METHOD),
        broken=all_of(_selective, on(METHOD)),
        message="selective recompute with recompute_method {recompute_method}, which belongs to full",
        nearest=fixed(recompute_method=None),
        source="megatron/training/arguments.py:1427",
        breaking=example(recompute_granularity="selective", recompute_method="uniform"),
        passing=example(recompute_granularity="selective"),
    ),
    Rule(
        id="recompute-groups",
        knobs=(LAYERS, METHOD),
        broken=all_of(_full, among(METHOD, "uniform"), _groups_overrun),
        message="uniform recompute in groups of {recompute_num_layers} layers does not divide every chunk of the "
        "pipeline: the last group runs past its layers",
        nearest=_group,
        source="megatron/core/transformer/transformer_block.py:539: layers index to index + group, without a limit",
        breaking=example(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=3),
        passing=example(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=4),
    ),
    Rule(
        id="distributed-saved-activations",
        knobs=(DISTRIBUTED, "sequence_parallel"),
        broken=all_of(on(DISTRIBUTED), on("sequence_parallel"), any_of(_full, _selective)),
        message="distribute_saved_activations with sequence_parallel, which spreads them already",
        nearest=fixed(distribute_saved_activations=False),
        source="transformer_config.py:1937",
        breaking=example(
            distribute_saved_activations=True,
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
            **TP2,
        ),
        passing=example(model=DENSE, expert_model_parallel_size=1, **_DISTRIBUTED),
    ),
    Rule(
        id="distributed-saved-full",
        binds=MEGATRON_LM,
        knobs=(DISTRIBUTED, GRANULARITY, TP),
        broken=all_of(on(DISTRIBUTED), off("sequence_parallel"), any_of(negated(_full), negated(above_one(TP)))),
        message="distribute_saved_activations needs full recompute and TP above 1: there is nothing to spread over TP "
        "{tp}",
        nearest=fixed(distribute_saved_activations=False),
        source="megatron/training/arguments.py:1411",
        breaking=example(distribute_saved_activations=True),
        passing=example(model=DENSE, expert_model_parallel_size=1, **_DISTRIBUTED),
    ),
)
