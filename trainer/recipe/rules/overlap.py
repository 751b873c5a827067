"""Rules of communication overlapped with compute: EP dispatch and combine, delayed weight gradients, TP."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    any_of,
    lists,
    negated,
    off,
    on,
    on_cpu,
)
from trainer.recipe.rules.examples import DENSE, PIPELINE
from trainer.recipe.rules.nearest import EP, PP, TP, chunks
from trainer.recipe.rules.rule import BRIDGE, LM_AND_BRIDGE, FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.settings import Settings

OVERLAP = "overlap_moe_expert_parallel_comm"
EARLY = "ep_overlap_early_attn_memory_release"
BACKWARD = "overlap_dispatch_backward_with_experts_wgrad"
ep_overlap = all_of(on(OVERLAP), negated(on_cpu))  # on CPUs another rule refuses it
no_ep_overlap = fixed(overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=False)


def _not_interleaved(recipe: Settings) -> bool:
    now = layout_of(recipe)
    return now.pp > 1 and now.vpp == 1


def _interleave(recipe: Settings) -> Suggestion:
    suggestion = chunks(recipe)
    found = suggestion.get("virtual_pipeline_model_parallel_size")
    return suggestion if found else no_ep_overlap(recipe)


def _mtp_layers(recipe: Settings) -> int:
    return recipe.architecture.mtp_num_layers or 0


def _several_mtp(recipe: Settings) -> bool:
    return _mtp_layers(recipe) > 1


def _mtp_without_pipeline(recipe: Settings) -> bool:
    return _mtp_layers(recipe) == 1 and layout_of(recipe).pp == 1


_NCCLEP_OFFLOAD: dict[str, Any] = {
    "overlap_moe_expert_parallel_comm": True,
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "ncclep",
    "fine_grained_activation_offloading": True,
    "NVTE_CPU_OFFLOAD_V1": 1,
}

ROWS = (
    Rule(
        id="ep-overlap-needs-ep",
        knobs=(OVERLAP, EP),
        broken=all_of(ep_overlap, negated(above_one(EP))),
        message="EP communication overlap with EP 1",
        nearest=no_ep_overlap,
        source="transformer_config.py:3015",
        breaking=example(overlap_moe_expert_parallel_comm=True, expert_model_parallel_size=1),
        passing=example(overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="ep-overlap-dispatcher",
        knobs=(OVERLAP, "moe_token_dispatcher_type"),
        broken=all_of(ep_overlap, among("moe_token_dispatcher_type", "allgather")),
        message="EP communication overlap with dispatcher allgather",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="transformer_config.py:3019",
        breaking=example(overlap_moe_expert_parallel_comm=True, moe_token_dispatcher_type="allgather"),
        passing=example(overlap_moe_expert_parallel_comm=True, moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="ep-overlap-precision",
        knobs=(OVERLAP, "precision"),
        broken=all_of(ep_overlap, among("precision", "fp32")),
        message="EP communication overlap in fp32: it needs a 16-bit model, bf16 or fp16",
        nearest=no_ep_overlap,
        source="transformer_config.py:3037; 0.16.1 :1882; src/megatron/bridge/training/comm_overlap.py, 0.3.1 :479",
        breaking=example(overlap_moe_expert_parallel_comm=True, precision="fp32"),
        passing=example(overlap_moe_expert_parallel_comm=True, precision="fp16"),
    ),
    Rule(
        id="ep-overlap-interleaving",
        knobs=(OVERLAP, PP, "virtual_pipeline_model_parallel_size"),
        broken=all_of(ep_overlap, _not_interleaved),
        message="EP communication overlap over PP {pp} without VPP: it overlaps micro batches of different chunks",
        nearest=_interleave,
        source="transformer_config.py:3009",
        breaking=example(overlap_moe_expert_parallel_comm=True, pipeline_model_parallel_size=2),
        passing=example(
            overlap_moe_expert_parallel_comm=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
    ),
    Rule(
        id="ep-overlap-full-recompute",
        knobs=(OVERLAP, "recompute_granularity", "recompute_method", "recompute_num_layers"),
        broken=all_of(
            ep_overlap,
            any_of(among("recompute_granularity", "full"), on("recompute_method"), on("recompute_num_layers")),
        ),
        message="EP communication overlap with full recompute (or its method or layer count set)",
        nearest=no_ep_overlap,
        source="transformer_config.py:3023",
        breaking=example(
            overlap_moe_expert_parallel_comm=True,
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
        ),
        passing=example(
            overlap_moe_expert_parallel_comm=True, recompute_granularity="selective", recompute_modules=("moe_act",)
        ),
    ),
    Rule(
        id="ep-overlap-moe-recompute",
        knobs=(OVERLAP, "recompute_modules"),
        broken=all_of(ep_overlap, lists("recompute_modules", "moe")),
        message="EP communication overlap with the whole `moe` among recompute_modules",
        nearest=without("recompute_modules", "moe"),
        source="transformer_config.py:3032",
        versions=SpecifierSet(">=0.17"),
        breaking=example(
            overlap_moe_expert_parallel_comm=True,
            recompute_granularity="selective",
            recompute_modules=("moe", "layernorm"),
        ),
        passing=example(
            overlap_moe_expert_parallel_comm=True, recompute_granularity="selective", recompute_modules=("layernorm",)
        ),
    ),
    Rule(
        id="ep-overlap-shared-overlap",
        knobs=(OVERLAP, "moe_shared_expert_overlap"),
        broken=all_of(ep_overlap, on("moe_shared_expert_overlap")),
        message="EP communication overlap together with moe_shared_expert_overlap",
        nearest=fixed(moe_shared_expert_overlap=False),
        source="transformer_config.py:3041",
        breaking=example(overlap_moe_expert_parallel_comm=True, moe_shared_expert_overlap=True),
        passing=example(overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="ep-overlap-mtp",
        knobs=(OVERLAP,),
        broken=all_of(ep_overlap, _several_mtp),
        message="EP communication overlap with {mtp_num_layers} MTP layers: it takes one",
        nearest=no_ep_overlap,
        source="transformer_config.py:3046",
        breaking=example(model={"mtp_num_layers": 2}, overlap_moe_expert_parallel_comm=True),
        passing=example(
            model={"mtp_num_layers": 1},
            overlap_moe_expert_parallel_comm=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
    ),
    Rule(
        id="delayed-wgrad-needs-overlap",
        knobs=("delay_wgrad_compute", OVERLAP),
        broken=all_of(on("delay_wgrad_compute"), off(OVERLAP)),
        message="delay_wgrad_compute without EP communication overlap: there is nothing to delay it behind",
        nearest=fixed(delay_wgrad_compute=False),
        source="transformer_config.py:3077",
        breaking=example(delay_wgrad_compute=True),
        passing=example(delay_wgrad_compute=True, overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="tp-overlap-needs-tp",
        binds=BRIDGE,
        kind=FindingKind.AUTOSET,
        knobs=("tp_comm_overlap", TP),
        broken=all_of(on("tp_comm_overlap"), negated(above_one(TP))),
        message="tp_comm_overlap with TP 1: Megatron-Bridge switches it off",
        nearest=fixed(tp_comm_overlap=False),
        source="src/megatron/bridge/training/comm_overlap.py:444",
        breaking=example(tp_comm_overlap=True),
        passing=example(
            tp_comm_overlap=True, tensor_model_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=1
        ),
    ),
    Rule(
        id="tp-overlap-needs-sp",
        binds=LM_AND_BRIDGE,
        knobs=("tp_comm_overlap", "sequence_parallel"),
        broken=all_of(on("tp_comm_overlap"), above_one(TP), off("sequence_parallel")),
        message="tp_comm_overlap without sequence_parallel: Megatron-LM refuses it, Megatron-Bridge switches it off",
        nearest=fixed(sequence_parallel=True),
        source="megatron/training/arguments.py:1442; src/megatron/bridge/training/comm_overlap.py:447",
        breaking=example(
            model=DENSE,
            expert_model_parallel_size=1,
            tensor_model_parallel_size=2,
            tp_comm_overlap=True,
        ),
        passing=example(
            tp_comm_overlap=True, tensor_model_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=1
        ),
    ),
    Rule(
        id="ep-overlap-mtp-pipeline",
        kind=FindingKind.WARNING,
        knobs=(OVERLAP, PP),
        broken=all_of(ep_overlap, _mtp_without_pipeline),
        message="EP communication overlap with an MTP layer and without a pipeline: Megatron-Core before 0.18 refuses "
        "it",
        nearest=no_ep_overlap,
        source="megatron-core 0.16.1 transformer_config.py:1890; gone in 0.18.0",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(model={"mtp_num_layers": 1}, overlap_moe_expert_parallel_comm=True),
        passing=example(model={"mtp_num_layers": 1}, overlap_moe_expert_parallel_comm=True, **PIPELINE),
    ),
    Rule(
        id="ep-overlap-local-graphs",
        kind=FindingKind.WARNING,
        knobs=(OVERLAP, "cuda_graph_impl"),
        broken=all_of(ep_overlap, among("cuda_graph_impl", "local")),
        message="EP communication overlap with local graphs: Megatron-Core before 0.18 refuses every graph but those "
        "of Transformer Engine",
        nearest=fixed(cuda_graph_impl="transformer_engine"),
        source="megatron-core 0.16.1 transformer_config.py:1896; loosened in 0.18.0",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(
            overlap_moe_expert_parallel_comm=True,
            cuda_graph_impl="local",
            cuda_graph_scope=("attn",),
            use_te_rng_tracker=True,
        ),
        passing=example(
            overlap_moe_expert_parallel_comm=True,
            cuda_graph_impl="transformer_engine",
            cuda_graph_scope=("attn",),
            use_te_rng_tracker=True,
        ),
    ),
    Rule(
        id="ncclep-overlap-offload",
        knobs=(OVERLAP, "moe_flex_dispatcher_backend", "offload_modules"),
        broken=all_of(
            ep_overlap,
            among("moe_token_dispatcher_type", "flex"),
            among("moe_flex_dispatcher_backend", "ncclep"),
            on("fine_grained_activation_offloading"),
            lists("offload_modules", "expert_fc1"),
        ),
        message="EP communication overlap over NCCL EP with expert_fc1 offloaded: the overlap frees what is to be "
        "moved",
        nearest=without("offload_modules", "expert_fc1"),
        source="transformer_config.py:3058",
        versions=SpecifierSet(">=0.19"),
        breaking=example(
            offload_modules=("core_attn", "expert_fc1"),
            **_NCCLEP_OFFLOAD,
        ),
        passing=example(offload_modules=("core_attn",), **_NCCLEP_OFFLOAD),
    ),
    Rule(
        id="early-release-needs-overlap",
        knobs=(EARLY, OVERLAP),
        broken=all_of(on(EARLY), off(OVERLAP)),
        message="ep_overlap_early_attn_memory_release without EP communication overlap",
        nearest=fixed(ep_overlap_early_attn_memory_release=False),
        source="transformer_config.py:3097",
        breaking=example(ep_overlap_early_attn_memory_release=True),
        passing=example(ep_overlap_early_attn_memory_release=True, overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="dispatch-backward-alone",
        knobs=(BACKWARD, OVERLAP, "delay_wgrad_compute"),
        broken=all_of(on(BACKWARD), any_of(on(OVERLAP), on("delay_wgrad_compute"))),
        message="overlap_dispatch_backward_with_experts_wgrad with EP communication overlap or delay_wgrad_compute: "
        "they are alternatives",
        nearest=fixed(overlap_dispatch_backward_with_experts_wgrad=False),
        source="transformer_config.py:3086",
        versions=SpecifierSet(">=0.18"),
        breaking=example(overlap_dispatch_backward_with_experts_wgrad=True, overlap_moe_expert_parallel_comm=True),
        passing=example(overlap_dispatch_backward_with_experts_wgrad=True),
    ),
)
