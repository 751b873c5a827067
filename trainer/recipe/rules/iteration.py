"""Rules of CUDA graphs of the whole iteration: how to request them, their requirements, and who refuses them."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import all_of, among, any_of, is_moe, lists, negated, off, on
from trainer.recipe.rules.graphs import IMPL, NO_GRAPHS, SCOPE, graphs, padded, whole_iteration
from trainer.recipe.rules.rule import LM_AND_BRIDGE, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

FINE = "fine_grained_activation_offloading"
INFLIGHT = "fine_grained_offloading_max_inflight_offloads"
_dropless = all_of(is_moe, negated(padded), off("moe_expert_rank_capacity_factor"))
_WHOLE: dict[str, Any] = {
    "cuda_graph_impl": "full_iteration",
    "use_te_rng_tracker": True,
    "moe_expert_capacity_factor": 1.0,
    "moe_pad_expert_input_to_capacity": True,
}


def _with_other_scopes(recipe: Settings) -> bool:
    return len(recipe.knob(SCOPE) or ()) > 1


ROWS = (
    Rule(
        id="graph-iteration-scope",
        knobs=(IMPL, SCOPE),
        broken=any_of(
            all_of(among(IMPL, "transformer_engine"), lists(SCOPE, "full_iteration")),
            all_of(among(IMPL, "full_iteration"), on(SCOPE)),
        ),
        message="{cuda_graph_impl} graphs with scope {cuda_graph_scope}: the whole iteration has no other scope",
        nearest=fixed(cuda_graph_scope=None),
        source="transformer_config.py:2796",
        breaking=example(
            **graphs(
                cuda_graph_impl="full_iteration",
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
        passing=example(**graphs()),
    ),
    Rule(
        id="graph-static-shapes",
        kind=FindingKind.WARNING,
        knobs=(IMPL, "moe_expert_capacity_factor", "moe_expert_rank_capacity_factor"),
        broken=all_of(whole_iteration, _dropless),
        message="a graph of the whole iteration on a dropless model needs static shapes: padding to capacity, or a "
        "rank capacity with paged stash",
        nearest=NO_GRAPHS,
        source="Megatron-Bridge skills, cuda-graphs: full-iteration on dropless MoE",
        breaking=example(**graphs(cuda_graph_impl="full_iteration", cuda_graph_scope=None)),
        passing=example(
            **graphs(
                cuda_graph_impl="full_iteration",
                cuda_graph_scope=None,
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
    ),
    Rule(
        id="graph-iteration-alone",
        knobs=(IMPL, SCOPE),
        broken=all_of(among(IMPL, "local"), lists(SCOPE, "full_iteration"), _with_other_scopes),
        message="graph scope {cuda_graph_scope}: full_iteration includes the others, which are refused with it",
        nearest=fixed(cuda_graph_scope=("full_iteration",)),
        source="megatron-core 0.18.0 transformer_config.py:2238; scripts/performance/utils/overrides.py:140",
        versions=SpecifierSet(">=0.18"),
        breaking=example(**_WHOLE | {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration", "attn")}),
        passing=example(**_WHOLE | {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}),
    ),
    Rule(
        id="graph-iteration-silent",
        kind=FindingKind.AUTOSET,
        knobs=(IMPL, SCOPE),
        broken=all_of(among(IMPL, "none"), lists(SCOPE, "full_iteration")),
        message="graph scope full_iteration without graphs: Megatron-Core 0.18 and later switch a graph of the whole "
        "iteration on, and refuse other scopes beside it",
        nearest=fixed(cuda_graph_scope=None),
        source="megatron-core 0.18.0 transformer_config.py, deprecated values of cuda_graph_scope",
        versions=SpecifierSet(">=0.18"),
        breaking=example(cuda_graph_scope=("full_iteration",)),
        passing=example(**graphs()),
    ),
    Rule(
        id="graph-iteration-release",
        kind=FindingKind.WARNING,
        knobs=(IMPL, SCOPE),
        broken=among(IMPL, "full_iteration"),
        message="cuda_graph_impl full_iteration: Megatron-Core before 0.18 does not know this value and refuses it",
        nearest=fixed(cuda_graph_impl="local", cuda_graph_scope=("full_iteration",)),
        source="megatron-core 0.16.1 transformer_config.py:1717; 0.18.0 has it",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(**_WHOLE),
        passing=example(**_WHOLE | {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}),
    ),
    Rule(
        id="graph-nan-check",
        kind=FindingKind.WARNING,
        binds=LM_AND_BRIDGE,
        knobs=(IMPL, SCOPE),
        broken=whole_iteration,
        message="a graph of the whole iteration cannot look for NaN: Megatron-LM and Megatron-Bridge refuse it while "
        "their check is on, and by default it is",
        hint="add --no-check-for-nan-in-loss-and-grad, or rerun_state_machine.check_for_nan_in_loss=false",
        source="megatron/training/arguments.py:1237; src/megatron/bridge/training/config.py:1511",
        breaking=example(**_WHOLE),
        passing=example(**graphs()),
    ),
    Rule(
        id="graph-iteration-offload",
        knobs=(IMPL, FINE, INFLIGHT),
        broken=all_of(whole_iteration, on(FINE), among(INFLIGHT, None)),
        message="fine-grained offload inside a graph of the whole iteration without a bound on the offloads in flight",
        nearest=fixed(fine_grained_offloading_max_inflight_offloads=1),
        source="transformer_config.py:2972",
        versions=SpecifierSet(">=0.18"),
        breaking=example(
            fine_grained_activation_offloading=True, offload_modules=("core_attn",), NVTE_CPU_OFFLOAD_V1=1, **_WHOLE
        ),
        passing=example(
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
            NVTE_CPU_OFFLOAD_V1=1,
            fine_grained_offloading_max_inflight_offloads=1,
            **_WHOLE,
        ),
    ),
)
