"""Rules of the rank grids: attention's TP·PP·CP·DP and, separately, the experts' ETP·EP·PP·EDP."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import grid_fits, layout_of
from trainer.recipe.predicates import all_of, is_moe
from trainer.recipe.rules.nearest import CP, EP, ETP, PP, TP, closest, divisors, expert_grid, grid
from trainer.recipe.rules.rule import Effect, Rule, Suggestion, example
from trainer.recipe.settings import Settings

INSTANCES = "num_distributed_optimizer_instances"


def _expert_grid_broken(recipe: Settings) -> bool:
    now = layout_of(recipe)
    return now.world % (now.etp * now.ep * now.pp) != 0


def _single_replicas(recipe: Settings) -> bool:
    now = layout_of(recipe)
    return now.ep == 1 and now.etp != now.tp


def _instances_broken(recipe: Settings) -> bool:
    now, instances = layout_of(recipe), recipe.knob(INSTANCES)
    return bool(now.dp * now.cp % instances or now.edp % instances)


def _instances(recipe: Settings) -> Suggestion:
    now = layout_of(recipe)
    common = [n for n in divisors(now.dp * now.cp) if now.edp % n == 0]
    return {INSTANCES: closest(recipe.knob(INSTANCES), common)}


ROWS = (
    Rule(
        id="world-attention-grid",
        knobs=(TP, PP, CP),
        broken=lambda recipe: not grid_fits(recipe),
        message="{world} ranks are not a multiple of TP {tp} · PP {pp} · CP {cp}",
        nearest=grid,
        hint="change the number of nodes or GPUs",
        source="megatron/core/parallel_state.py:823",
        breaking=example(context_parallel_size=3, seq_length=6144, global_batch_size=60),
        passing=example(
            tensor_model_parallel_size=2, context_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=1
        ),
    ),
    Rule(
        id="world-expert-grid",
        knobs=(EP, ETP, PP),
        broken=_expert_grid_broken,
        message="{world} ranks are not a multiple of ETP {etp} · EP {ep} · PP {pp}: experts fold over the ranks of TP, "
        "CP and DP, never over those of PP",
        nearest=expert_grid,
        hint="change the number of nodes or GPUs",
        source="megatron/core/parallel_state.py:883",
        breaking=example(pipeline_model_parallel_size=4),
        passing=example(context_parallel_size=4, expert_model_parallel_size=16),
    ),
    Rule(
        id="single-expert-replicas",
        knobs=(EP, ETP, TP),
        broken=all_of(is_moe, _single_replicas),
        message="with EP 1 and ETP {etp} and TP {tp} the replicas of an expert diverge without an error: "
        "Megatron-Core reduces their gradients over the wrong group",
        nearest=lambda recipe: {ETP: layout_of(recipe).tp},
        source="measured with megatron-core 0.16.1: losses 5.577 and 5.655 on two ranks after three steps; "
        "Megatron-LM#1628, fixed in Megatron-LM#5916",
        versions=SpecifierSet(">=0.15,<0.19"),
        effect=Effect.TRAINS_WRONGLY,
        breaking=example(
            tensor_model_parallel_size=2,
            sequence_parallel=True,
            expert_model_parallel_size=1,
            expert_tensor_parallel_size=1,
        ),
        passing=example(tensor_model_parallel_size=2, sequence_parallel=True, expert_model_parallel_size=1),
    ),
    Rule(
        id="optimizer-instances",
        knobs=(INSTANCES,),
        broken=_instances_broken,
        message="{num_distributed_optimizer_instances} optimizer instances do not divide DP·CP {dp}·{cp} and EDP {edp}",
        nearest=_instances,
        source="megatron/core/parallel_state.py:925",
        breaking=example(num_distributed_optimizer_instances=3),
        passing=example(num_distributed_optimizer_instances=2),
    ),
)
