"""Communication behind compute: EP dispatch and combine, delayed weight gradients, TP, data parallel, connections."""

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    any_of,
    is_moe,
    negated,
    off,
    on,
    on_cpu,
    recomputed,
)
from trainer.recipe.rules.nearest import CP, EP, PP, TP, chunks
from trainer.recipe.rules.rule import FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.schema import Recipe

OVERLAP = "overlap_moe_expert_parallel_comm"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_ep_overlap = all_of(is_moe, on(OVERLAP), negated(on_cpu))  # on a CPU one rule of its own says no
_no_ep_overlap = fixed(overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=False)


def _not_interleaved(recipe: Recipe) -> bool:
    now = layout_of(recipe)
    return now.pp > 1 and now.vpp == 1


def _interleave(recipe: Recipe) -> Suggestion:
    suggestion = chunks(recipe)
    found = suggestion.get("virtual_pipeline_model_parallel_size")
    return suggestion if found else _no_ep_overlap(recipe)


def _is_hopper(recipe: Recipe) -> bool:
    return recipe.hardware.architecture == "hopper"


def _mtp_layers(recipe: Recipe) -> int:
    return recipe.architecture.mtp_num_layers or 0


def _mtp_broken(recipe: Recipe) -> bool:
    return _mtp_layers(recipe) > 1 or (_mtp_layers(recipe) == 1 and layout_of(recipe).pp == 1)


ROWS = (
    Rule(
        id="ep-overlap-needs-ep",
        knobs=(OVERLAP, EP),
        broken=all_of(_ep_overlap, negated(above_one(EP))),
        message="EP communication overlap with EP 1",
        nearest=_no_ep_overlap,
        source="transformer_config.py:3015",
        breaking=example(overlap_moe_expert_parallel_comm=True, expert_model_parallel_size=1),
        passing=example(overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="ep-overlap-dispatcher",
        knobs=(OVERLAP, "moe_token_dispatcher_type"),
        broken=all_of(_ep_overlap, among("moe_token_dispatcher_type", "allgather")),
        message="EP communication overlap with dispatcher allgather",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="transformer_config.py:3019",
        breaking=example(overlap_moe_expert_parallel_comm=True, moe_token_dispatcher_type="allgather"),
        passing=example(overlap_moe_expert_parallel_comm=True, moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="ep-overlap-precision",
        knobs=(OVERLAP, "precision"),
        broken=all_of(_ep_overlap, among("precision", "fp32")),
        message="EP communication overlap in fp32: it needs a 16-bit model",
        nearest=_no_ep_overlap,
        source="transformer_config.py:3037",
        breaking=example(overlap_moe_expert_parallel_comm=True, precision="fp32"),
        passing=example(overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="ep-overlap-interleaving",
        knobs=(OVERLAP, PP, "virtual_pipeline_model_parallel_size"),
        broken=all_of(_ep_overlap, _not_interleaved),
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
            _ep_overlap,
            any_of(among("recompute_granularity", "full"), on("recompute_method"), on("recompute_num_layers")),
        ),
        message="EP communication overlap with full recompute (or its method or layer count set)",
        nearest=_no_ep_overlap,
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
        broken=all_of(_ep_overlap, recomputed("moe")),
        message="EP communication overlap with the whole `moe` recomputed",
        nearest=without("recompute_modules", "moe"),
        source="transformer_config.py:3032",
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
        broken=all_of(_ep_overlap, on("moe_shared_expert_overlap")),
        message="EP communication overlap together with moe_shared_expert_overlap",
        nearest=fixed(moe_shared_expert_overlap=False),
        source="transformer_config.py:3041",
        breaking=example(overlap_moe_expert_parallel_comm=True, moe_shared_expert_overlap=True),
        passing=example(overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="ep-overlap-mtp",
        knobs=(OVERLAP,),
        broken=all_of(_ep_overlap, _mtp_broken),
        message="EP communication overlap with {mtp_num_layers} MTP layers over PP {pp}: it takes one, and a pipeline",
        nearest=_no_ep_overlap,
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
        id="ep-overlap-connections",
        kind=FindingKind.WARNING,
        knobs=(OVERLAP, CONNECTIONS),
        broken=all_of(_ep_overlap, among(CONNECTIONS, 1)),
        message="EP communication overlap with one device connection: the queue lets little overlap (+3.7 % against "
        "+7.8 % with 32)",
        nearest=fixed(CUDA_DEVICE_MAX_CONNECTIONS=32),
        source="megatron/training/arguments.py:1468; measured in Megatron-LM#6311",
        breaking=example(overlap_moe_expert_parallel_comm=True, CUDA_DEVICE_MAX_CONNECTIONS=1),
        passing=example(overlap_moe_expert_parallel_comm=True, CUDA_DEVICE_MAX_CONNECTIONS=32),
    ),
    Rule(
        id="hopper-connections",
        kind=FindingKind.WARNING,
        knobs=(CONNECTIONS,),
        broken=all_of(
            _is_hopper,
            any_of(above_one(TP), above_one(CP)),
            off(OVERLAP),
            off("use_megatron_fsdp"),
            negated(among(CONNECTIONS, 1, None)),
        ),
        message="TP or CP on Hopper with {CUDA_DEVICE_MAX_CONNECTIONS} device connections: Megatron-LM wants 1",
        nearest=fixed(CUDA_DEVICE_MAX_CONNECTIONS=1),
        source="megatron/training/arguments.py:1478",
        versions="Megatron-LM's command line; Megatron-Bridge does not check",
        breaking=example(context_parallel_size=2, CUDA_DEVICE_MAX_CONNECTIONS=8),
        passing=example(context_parallel_size=2, CUDA_DEVICE_MAX_CONNECTIONS=1),
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
        knobs=("tp_comm_overlap", "sequence_parallel"),
        broken=all_of(on("tp_comm_overlap"), above_one(TP), off("sequence_parallel")),
        message="tp_comm_overlap without sequence_parallel",
        nearest=fixed(sequence_parallel=True),
        source="megatron/training/arguments.py:1442",
        breaking=example(
            model={"num_moe_experts": None},
            expert_model_parallel_size=1,
            tensor_model_parallel_size=2,
            tp_comm_overlap=True,
        ),
        passing=example(
            tp_comm_overlap=True, tensor_model_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=1
        ),
    ),
    Rule(
        id="param-gather-needs-sharding",
        knobs=("overlap_param_gather", "use_distributed_optimizer"),
        broken=all_of(on("overlap_param_gather"), off("use_distributed_optimizer"), off("use_megatron_fsdp")),
        message="overlap_param_gather without the distributed optimizer: no parameters are gathered",
        nearest=fixed(use_distributed_optimizer=True),
        source="megatron/training/arguments.py:1027",
        breaking=example(overlap_param_gather=True, use_distributed_optimizer=False),
        passing=example(overlap_param_gather=True),
    ),
    Rule(
        id="param-gather-needs-grad-overlap",
        knobs=("overlap_param_gather", "overlap_grad_reduce"),
        broken=all_of(on("overlap_param_gather"), off("overlap_grad_reduce")),
        message="overlap_param_gather without overlap_grad_reduce",
        nearest=fixed(overlap_grad_reduce=True),
        source="megatron/training/arguments.py:1029",
        breaking=example(overlap_param_gather=True, overlap_grad_reduce=False),
        passing=example(overlap_param_gather=True),
    ),
    Rule(
        id="param-gather-with-step",
        kind=FindingKind.WARNING,
        knobs=("overlap_param_gather_with_optimizer_step", "overlap_param_gather"),
        broken=all_of(
            on("overlap_param_gather_with_optimizer_step"),
            any_of(off("overlap_param_gather"), lambda recipe: layout_of(recipe).vpp == 1),
        ),
        message="overlap_param_gather_with_optimizer_step does nothing without overlap_param_gather and VPP",
        nearest=fixed(overlap_param_gather_with_optimizer_step=False),
        source="megatron/training/arguments.py:1072",
        versions="an error on Megatron-LM's command line only",
        breaking=example(overlap_param_gather_with_optimizer_step=True),
        passing=example(
            overlap_param_gather_with_optimizer_step=True,
            overlap_param_gather=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
    ),
    Rule(
        id="instances-need-sharding",
        knobs=("num_distributed_optimizer_instances", "use_distributed_optimizer"),
        broken=all_of(above_one("num_distributed_optimizer_instances"), off("use_distributed_optimizer")),
        message="{num_distributed_optimizer_instances} optimizer instances without the distributed optimizer",
        nearest=fixed(num_distributed_optimizer_instances=1),
        source="megatron/core/distributed/distributed_data_parallel.py:360",
        breaking=example(num_distributed_optimizer_instances=2, use_distributed_optimizer=False),
        passing=example(num_distributed_optimizer_instances=2),
    ),
    Rule(
        id="fsdp-connections",
        knobs=("use_megatron_fsdp", CONNECTIONS),
        broken=all_of(on("use_megatron_fsdp"), among(CONNECTIONS, 1)),
        message="Megatron FSDP with one device connection",
        nearest=fixed(CUDA_DEVICE_MAX_CONNECTIONS=32),
        source="megatron/training/arguments.py:1167",
        breaking=example(use_megatron_fsdp=True, CUDA_DEVICE_MAX_CONNECTIONS=1),
        passing=example(use_megatron_fsdp=True, CUDA_DEVICE_MAX_CONNECTIONS=32),
    ),
    Rule(
        id="fsdp-interleaved-overlap",
        knobs=(OVERLAP, "use_megatron_fsdp"),
        broken=all_of(_ep_overlap, on("use_megatron_fsdp"), lambda recipe: layout_of(recipe).vpp > 1),
        message="EP communication overlap with Megatron FSDP and VPP {vpp}",
        nearest=_no_ep_overlap,
        source="megatron/core/pipeline_parallel/combined_1f1b.py:211",
        breaking=example(
            overlap_moe_expert_parallel_comm=True,
            use_megatron_fsdp=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
        passing=example(overlap_moe_expert_parallel_comm=True, use_megatron_fsdp=True),
    ),
)
