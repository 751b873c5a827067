"""Rules of number formats: FP8 and FP4 recipes by GPU, FP8 parameters, dtypes of the optimizer's state."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layer_counts_of_ranks
from trainer.recipe.predicates import all_of, among, fp8, negated, off, on, on_gpu
from trainer.recipe.rules.rule import BRIDGE, MEGATRON_LM, FindingKind, Rule, Suggestion, example, fixed
from trainer.recipe.settings import Settings

STATE_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
BF16_ENDS = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
PARAM_GATHER = "fp8_param_gather"
REUSE = "reuse_grad_buf_for_mxfp8_param_ag"
OUTPUT = "fp8_output_proj"
TIED = {"untie_embeddings_and_output_weights": False}


def _lacks_format(recipe: Settings) -> bool:
    return recipe.hardware.runs(recipe.training.precision) is False


def _emulates_format(recipe: Settings) -> bool:
    return recipe.training.precision in recipe.hardware.emulated_precisions


def _own_format(recipe: Settings) -> Suggestion:
    return {"precision": next(iter(recipe.hardware.plan_precisions), "bf16")}


def _low_state(recipe: Settings) -> bool:
    return any(recipe.knob(name) != "float32" for name in STATE_DTYPES)


def _bf16_ends_broken(recipe: Settings) -> bool:
    return any(recipe.knob(name) > _stage(recipe) for name in BF16_ENDS)


def _stage(recipe: Settings) -> int:
    return max(1, recipe.architecture.num_layers // len(layer_counts_of_ranks(recipe)))


def _bf16_ends(recipe: Settings) -> Suggestion:
    return {name: _stage(recipe) for name in BF16_ENDS if recipe.knob(name) > _stage(recipe)}


def _shares_its_weight(recipe: Settings) -> bool:
    tied = not recipe.architecture.untie_embeddings_and_output_weights
    return tied and recipe.parallelism.pipeline_model_parallel_size == 1


ROWS = (
    Rule(
        id="format-suits-gpu",
        kind=FindingKind.WARNING,
        knobs=("precision",),
        broken=_lacks_format,
        message="{precision} on {gpu}: Megatron-Core takes the recipe, Transformer Engine stops the first step of it "
        "(the GPU does not compute in the format); nothing will be trained",
        nearest=_own_format,
        source="Transformer Engine, pytorch/fp8.py: MXFP8BlockScaling and NVFP4BlockScaling need compute capability "
        "10.0",
        versions_note="a check of Transformer Engine, not of Megatron-Core",
        breaking=example(precision="mxfp8"),
        passing=example(precision="fp8_blockwise"),
    ),
    Rule(
        id="blockwise-on-blackwell",
        kind=FindingKind.WARNING,
        knobs=("precision",),
        broken=_emulates_format,
        message="{precision} on {gpu} is emulated with MXFP8",
        nearest=_own_format,
        source="Transformer Engine: Float8BlockScaling runs natively on Hopper only",
        breaking=example(cluster={"gpu": "b200"}, precision="fp8_blockwise"),
        passing=example(cluster={"gpu": "b200"}, precision="mxfp8"),
    ),
    Rule(
        id="fp32-on-gpu",
        kind=FindingKind.WARNING,
        knobs=("precision",),
        broken=all_of(among("precision", "fp32"), on_gpu),
        message="fp32 on a GPU: tensor cores idle",
        nearest=fixed(precision="bf16"),
        source="hardware.csv: dense peaks are for bf16 and below",
        breaking=example(precision="fp32"),
        passing=example(precision="bf16"),
    ),
    Rule(
        id="fp8-params-need-fp8",
        knobs=(PARAM_GATHER, "precision"),
        broken=all_of(on(PARAM_GATHER), negated(fp8)),
        message="fp8_param_gather in {precision}",
        nearest=fixed(fp8_param_gather=False, reuse_grad_buf_for_mxfp8_param_ag=False),
        source="transformer_config.py:1567",
        breaking=example(fp8_param_gather=True),
        passing=example(fp8_param_gather=True, precision="fp8_current"),
    ),
    Rule(
        id="fp8-params-need-sharding",
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        kind=FindingKind.WARNING,
        knobs=(PARAM_GATHER, "use_distributed_optimizer"),
        broken=all_of(on(PARAM_GATHER), off("use_distributed_optimizer"), off("use_megatron_fsdp")),
        message="fp8_param_gather without the distributed optimizer: no parameters are gathered; Megatron-LM's "
        "command line refuses it, Megatron-Bridge and Megatron-Core start it",
        nearest=fixed(use_distributed_optimizer=True),
        source="megatron/training/arguments.py:1097; no such check in Megatron-Core 0.16.1 to 0.19.0 or "
        "Megatron-Bridge 0.3.1 to 0.6.2 (training/config.py, mixed_precision.py)",
        breaking=example(fp8_param_gather=True, precision="fp8_current", use_distributed_optimizer=False),
        passing=example(fp8_param_gather=True, precision="fp8_current"),
    ),
    Rule(
        id="mxfp8-params-reuse",
        binds=BRIDGE,
        knobs=(PARAM_GATHER, REUSE),
        broken=all_of(on(PARAM_GATHER), among("precision", "mxfp8"), off(REUSE), off("use_megatron_fsdp")),
        message="fp8_param_gather with mxfp8 without reuse_grad_buf_for_mxfp8_param_ag",
        nearest=fixed(reuse_grad_buf_for_mxfp8_param_ag=True),
        source="src/megatron/bridge/training/config.py:1497",
        breaking=example(cluster={"gpu": "b200"}, precision="mxfp8", fp8_param_gather=True),
        passing=example(
            cluster={"gpu": "b200"}, precision="mxfp8", fp8_param_gather=True, reuse_grad_buf_for_mxfp8_param_ag=True
        ),
    ),
    Rule(
        id="reuse-needs-fp8-params",
        knobs=(REUSE, PARAM_GATHER),
        broken=all_of(on(REUSE), off(PARAM_GATHER)),
        message="reuse_grad_buf_for_mxfp8_param_ag without fp8_param_gather",
        nearest=fixed(reuse_grad_buf_for_mxfp8_param_ag=False),
        source="distributed_data_parallel_config.py:260",
        breaking=example(cluster={"gpu": "b200"}, precision="mxfp8", reuse_grad_buf_for_mxfp8_param_ag=True),
        passing=example(cluster={"gpu": "b200"}, precision="mxfp8"),
    ),
    Rule(
        id="reuse-with-step-gather",
        knobs=(REUSE, "overlap_param_gather_with_optimizer_step"),
        broken=all_of(on(REUSE), on("overlap_param_gather_with_optimizer_step")),
        message="reuse_grad_buf_for_mxfp8_param_ag with overlap_param_gather_with_optimizer_step",
        nearest=fixed(overlap_param_gather_with_optimizer_step=False),
        source="megatron/core/optimizer/optimizer_config.py:428",
        versions=SpecifierSet(">=0.19"),
        versions_note="before, nothing refuses it",
        breaking=example(
            cluster={"gpu": "b200"},
            precision="mxfp8",
            fp8_param_gather=True,
            reuse_grad_buf_for_mxfp8_param_ag=True,
            overlap_param_gather=True,
            overlap_param_gather_with_optimizer_step=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
        passing=example(
            cluster={"gpu": "b200"}, precision="mxfp8", fp8_param_gather=True, reuse_grad_buf_for_mxfp8_param_ag=True
        ),
    ),
    Rule(
        id="fp8-output-needs-mxfp8",
        knobs=(OUTPUT, "precision"),
        broken=all_of(on(OUTPUT), negated(among("precision", "mxfp8"))),
        message="fp8_output_proj in {precision}",
        nearest=fixed(fp8_output_proj=False),
        source="transformer_config.py:1569",
        versions=SpecifierSet(">=0.18"),
        breaking=example(fp8_output_proj=True),
        passing=example(cluster={"gpu": "b200"}, precision="mxfp8", fp8_output_proj=True),
    ),
    Rule(
        id="fp8-output-owns-its-weight",
        knobs=(OUTPUT, "pipeline_model_parallel_size"),
        broken=all_of(on(OUTPUT), _shares_its_weight),
        message="fp8_output_proj for a model whose output projection is the embedding's weight, on one pipeline stage",
        nearest=fixed(fp8_output_proj=False),
        source="megatron/core/extensions/transformer_engine.py:1826",
        versions=SpecifierSet(">=0.18"),
        breaking=example(cluster={"gpu": "b200"}, precision="mxfp8", fp8_output_proj=True, model=TIED),
        passing=example(cluster={"gpu": "b200"}, precision="mxfp8", fp8_output_proj=True),
    ),
    Rule(
        id="bf16-ends-delayed",
        knobs=("first_last_layers_bf16", "precision"),
        broken=all_of(on("first_last_layers_bf16"), among("precision", "fp8_delayed")),
        message="first_last_layers_bf16 under delayed FP8 scaling",
        nearest=fixed(first_last_layers_bf16=False),
        source="transformer_config.py:1530",
        breaking=example(first_last_layers_bf16=True, precision="fp8_delayed"),
        passing=example(first_last_layers_bf16=True, precision="fp8_current"),
    ),
    Rule(
        id="bf16-ends-within-stage",
        knobs=BF16_ENDS,
        broken=all_of(on("first_last_layers_bf16"), fp8, _bf16_ends_broken),
        message="more bf16 layers at an end ({num_layers_at_start_in_bf16}, {num_layers_at_end_in_bf16}) than a "
        "pipeline stage has",
        nearest=_bf16_ends,
        source="transformer_config.py:1544",
        breaking=example(first_last_layers_bf16=True, precision="fp8_current", num_layers_at_start_in_bf16=9),
        passing=example(first_last_layers_bf16=True, precision="fp8_current", num_layers_at_start_in_bf16=2),
    ),
    Rule(
        id="state-dtypes-need-aware",
        knobs=("use_precision_aware_optimizer", *STATE_DTYPES),
        broken=all_of(_low_state, off("use_precision_aware_optimizer")),
        message="optimizer state below float32 without use_precision_aware_optimizer",
        nearest=fixed(use_precision_aware_optimizer=True),
        source="optimizer_config.py:471",
        breaking=example(exp_avg_dtype="bfloat16"),
        passing=example(exp_avg_dtype="bfloat16", use_precision_aware_optimizer=True),
    ),
    Rule(
        id="aware-needs-sharding",
        knobs=("use_precision_aware_optimizer", "use_distributed_optimizer"),
        broken=all_of(on("use_precision_aware_optimizer"), off("use_distributed_optimizer")),
        message="use_precision_aware_optimizer without the distributed optimizer",
        nearest=fixed(use_distributed_optimizer=True),
        source="megatron/core/optimizer/__init__.py:1059; optimizer_config.py asserts it in 0.16.1",
        breaking=example(use_precision_aware_optimizer=True, use_distributed_optimizer=False),
        passing=example(use_precision_aware_optimizer=True),
    ),
    Rule(
        id="low-gradients-reduced-in-fp32",
        binds=MEGATRON_LM,
        knobs=("main_grads_dtype", "grad_reduce_in_fp32"),
        broken=all_of(
            on("grad_reduce_in_fp32"),
            negated(among("main_grads_dtype", "float32")),
            negated(among("precision", "fp32")),
        ),
        message="main_grads_dtype {main_grads_dtype} with gradients reduced in fp32",
        nearest=fixed(grad_reduce_in_fp32=False),
        source="megatron/training/arguments.py:1211",
        breaking=example(main_grads_dtype="bfloat16", use_precision_aware_optimizer=True, grad_reduce_in_fp32=True),
        passing=example(main_grads_dtype="bfloat16", use_precision_aware_optimizer=True, grad_reduce_in_fp32=False),
    ),
    Rule(
        id="mxfp8-memory",
        kind=FindingKind.WARNING,
        knobs=("precision", PARAM_GATHER, REUSE),
        broken=all_of(among("precision", "mxfp8"), off(PARAM_GATHER), off("use_megatron_fsdp")),
        message="mxfp8 without fp8_param_gather: parameters are kept in bf16 and in MXFP8, rows and columns, which "
        "takes much more memory",
        nearest=fixed(fp8_param_gather=True, reuse_grad_buf_for_mxfp8_param_ag=True),
        source="megatron/core/optimizer/optimizer_config.py:421",
        breaking=example(cluster={"gpu": "b200"}, precision="mxfp8"),
        passing=example(
            cluster={"gpu": "b200"}, precision="mxfp8", fp8_param_gather=True, reuse_grad_buf_for_mxfp8_param_ag=True
        ),
    ),
    Rule(
        id="te-cross-entropy",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        knobs=("cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
        broken=all_of(on("cross_entropy_loss_fusion"), among("cross_entropy_fusion_impl", "te"), on_gpu),
        message="the te cross entropy: Megatron-LM's command line refuses it since 0.18.2, Megatron-Core warns, "
        "Megatron-Bridge's own recipes use it",
        nearest=fixed(cross_entropy_fusion_impl="native"),
        source="megatron/training/arguments.py:1700; 0.18.2 :1529; megatron/core/model_parallel_config.py:538",
        versions=SpecifierSet(">=0.18.2"),
        breaking=example(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te"),
        passing=example(cross_entropy_loss_fusion=True),
    ),
)
