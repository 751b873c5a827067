"""Rules of batch and sequence over ranks: batches must divide into micro batches, sequences into equal shares, heads
over the context ranks that exchange them."""

from math import prod

from trainer.recipe.layout import grid_fits, layout_of
from trainer.recipe.predicates import above_one, all_of, among, on
from trainer.recipe.rules.nearest import CP, TP, batch, size_where
from trainer.recipe.rules.rule import Rule, example, fixed
from trainer.recipe.settings import Settings

HIERARCHY = "hierarchical_context_parallel_sizes"
HIERARCHY_LEVELS = 2
NO_HIERARCHY = fixed(cp_comm_type="p2p", hierarchical_context_parallel_sizes=None)


def _all_to_all_ranks(recipe: Settings) -> int:
    """Returns the number of context ranks over which heads are distributed."""
    sizes = recipe.knob(HIERARCHY) if recipe.knob("cp_comm_type") == "a2a+p2p" else None
    return sizes[0] if sizes else layout_of(recipe).cp


def _batch_broken(recipe: Settings) -> bool:
    together = recipe.training.micro_batch_size * recipe.data_parallel_size
    return grid_fits(recipe) and recipe.training.global_batch_size % together != 0


def _splits_evenly(recipe: Settings, cp: int) -> bool:
    """Returns True if every context rank can get two equal chunks, one from each end, which balances causal
    attention."""
    return cp == 1 or recipe.training.seq_length % (2 * cp) == 0


def _sequence_shares(recipe: Settings, tp: int) -> bool:
    return recipe.training.seq_length // layout_of(recipe).cp % tp == 0


def _attention_shares(recipe: Settings, cp: int) -> bool:
    """Returns True if a tensor rank's heads and query groups divide evenly over the context ranks."""
    model, tp = recipe.architecture, layout_of(recipe).tp
    groups = model.num_query_groups or model.num_attention_heads
    return model.num_attention_heads // tp % cp == 0 and max(1, groups // tp) % cp == 0


ROWS = (
    Rule(
        id="batch-divides",
        knobs=("global_batch_size", "micro_batch_size"),
        broken=_batch_broken,
        message="global batch {global_batch_size} is not a multiple of micro batch {micro_batch_size} · DP {dp}",
        nearest=batch,
        source="megatron/core/num_microbatches_calculator.py:382",
        breaking=example(micro_batch_size=3),
        passing=example(micro_batch_size=4),
    ),
    Rule(
        id="sequence-over-cp",
        knobs=(CP, "seq_length"),
        broken=lambda recipe: not _splits_evenly(recipe, layout_of(recipe).cp),
        message="sequence {seq_length} is not a multiple of 2·CP {cp}",
        nearest=size_where(CP, _splits_evenly),
        source="megatron/training/arguments.py:1337; src/megatron/bridge/training/config.py:1576",
        breaking=example(seq_length=4098, context_parallel_size=2),
        passing=example(context_parallel_size=2),
    ),
    Rule(
        id="sequence-over-tp",
        knobs=(TP, "seq_length"),
        broken=all_of(on("sequence_parallel"), lambda recipe: not _sequence_shares(recipe, layout_of(recipe).tp)),
        message="with sequence parallel, sequence {seq_length} / CP {cp} is not a multiple of TP {tp}",
        nearest=size_where(TP, _sequence_shares),
        source="megatron/core/tensor_parallel/mappings.py: the first dimension is split over TP",
        breaking=example(
            seq_length=4098, tensor_model_parallel_size=4, sequence_parallel=True, expert_tensor_parallel_size=1
        ),
        passing=example(tensor_model_parallel_size=4, sequence_parallel=True, expert_tensor_parallel_size=1),
    ),
    Rule(
        id="cp-hierarchy-sizes",
        knobs=("cp_comm_type", HIERARCHY),
        broken=all_of(
            above_one(CP),
            among("cp_comm_type", "a2a+p2p"),
            lambda recipe: len(recipe.knob(HIERARCHY) or ()) != HIERARCHY_LEVELS,
        ),
        message="cp_comm_type a2a+p2p with hierarchical_context_parallel_sizes {hierarchical_context_parallel_sizes}: "
        "it needs two sizes, the ranks that exchange heads and the groups of them in the ring. Megatron-LM refuses it, "
        "Megatron-Bridge since 0.4; older ones and Megatron-Core alone train without context parallelism, silently",
        nearest=NO_HIERARCHY,
        source="megatron/training/arguments.py:584, 0.16.1 :407; src/megatron/bridge/training/config.py:1683, 0.4.0 "
        ":1274; Megatron-Bridge#2667, Megatron-Bridge#2665; Transformer Engine, context_parallel.py: two levels of "
        "groups",
        breaking=example(context_parallel_size=4, cp_comm_type="a2a+p2p"),
        passing=example(context_parallel_size=4, cp_comm_type="a2a+p2p", hierarchical_context_parallel_sizes=(2, 2)),
    ),
    Rule(
        id="cp-hierarchy-product",
        knobs=(HIERARCHY, CP),
        broken=all_of(
            on(HIERARCHY), lambda recipe: prod(recipe.knob(HIERARCHY)) != recipe.parallelism.context_parallel_size
        ),
        message="hierarchical_context_parallel_sizes {hierarchical_context_parallel_sizes} do not multiply to CP {cp}",
        nearest=NO_HIERARCHY,
        source="megatron/training/arguments.py:582",
        breaking=example(context_parallel_size=4, cp_comm_type="a2a+p2p", hierarchical_context_parallel_sizes=(2, 4)),
        passing=example(context_parallel_size=4, cp_comm_type="a2a+p2p", hierarchical_context_parallel_sizes=(2, 2)),
    ),
    Rule(
        id="cp-a2a-heads",
        knobs=("cp_comm_type", CP),
        broken=all_of(
            above_one(CP),
            among("cp_comm_type", "a2a", "a2a+p2p"),
            lambda recipe: not _attention_shares(recipe, _all_to_all_ranks(recipe)),
        ),
        message="cp_comm_type {cp_comm_type} splits {num_attention_heads} heads and {num_query_groups} query groups "
        "over TP {tp} and CP {cp}: they do not divide evenly",
        nearest=NO_HIERARCHY,
        source="Transformer Engine, attention/dot_product_attention/context_parallel.py: heads and groups divide by CP",
        breaking=example(model={"num_query_groups": 2}, context_parallel_size=4, cp_comm_type="a2a"),
        passing=example(context_parallel_size=4, cp_comm_type="a2a"),
    ),
)
