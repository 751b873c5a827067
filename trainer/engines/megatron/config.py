"""Makes Megatron-Core's configurations from a recipe: transformer (with the parallel sizes), DDP and optimizer.

A knob goes to every configuration with a field of its name; only settings with other names or types there are written
out here (architecture, precision, layer frequency).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from trainer.engines.megatron import compat
from trainer.engines.megatron.fusions import fusions
from trainer.frameworks.megatron_lm.spelling import whole_iteration
from trainer.recipe import Recipe
from trainer.recipe.architecture import YARN
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import layout_of

# precision -> (parameter dtype, bf16 flag, Megatron's low-precision fields)
PRECISIONS: dict[str, tuple[torch.dtype, bool, dict[str, str]]] = {
    "fp32": (torch.float32, False, {}),
    "bf16": (torch.bfloat16, True, {}),
    "fp16": (torch.float16, False, {}),
    "fp8_delayed": (torch.bfloat16, True, {"fp8": "hybrid", "fp8_recipe": "delayed"}),
    "fp8_current": (torch.bfloat16, True, {"fp8": "hybrid", "fp8_recipe": "tensorwise"}),
    "fp8_blockwise": (torch.bfloat16, True, {"fp8": "e4m3", "fp8_recipe": "blockwise"}),
    "mxfp8": (torch.bfloat16, True, {"fp8": "e4m3", "fp8_recipe": "mxfp8"}),
    "nvfp4": (torch.bfloat16, True, {"fp4": "e2m1", "fp4_recipe": "nvfp4"}),
}


# fields of the architecture that are not in Megatron's configuration, or that `_architecture_fields` sets
NOT_IN_CONFIG = {
    "vocab_size",
    "make_vocab_size_divisible_by",
    "position_embedding_type",
    "hybrid",
    "untie_embeddings_and_output_weights",
    "multi_latent_attention",
    "activation_func",
    "use_rope_scaling",
    "rope_scaling_factor",
    "attention_chunk_size",
    "yarn_correction_range_round_to_int",
    # fields of layers that the engine refuses
    "mamba_dt_rank",
    "mtp_hybrid_override_pattern",
    "csa_compress_ratios",
    "csa_window_size",
    "o_groups",
    "o_lora_rank",
    "enable_hyper_connections",
    "num_residual_streams",
    "moe_n_hash_layers",
}
# fields of the configuration with latent attention, arguments of GPTModel without it
ROTATION = ("rotary_base", "rotary_percent")
LISTS = {
    "moe_layer_freq",
    "window_attn_skip_freq",
    "no_rope_freq",
    "linear_attention_freq",
}  # Megatron takes no tuple for them


@dataclass(frozen=True, kw_only=True)
class MegatronConfigs:
    """The configurations of one recipe.

    `unknown` are knobs for which the installed Megatron-Core has no field; they have no effect.
    """

    transformer: Any
    ddp: Any
    optimizer: Any
    unknown: tuple[str, ...]


def build_configs(recipe: Recipe, *, transformer_engine: bool) -> MegatronConfigs:
    """Returns Megatron's configurations.

    Megatron's own checks run here and raise its errors (AssertionError, ValueError).
    """
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    dtype, bf16, low_precision = PRECISIONS[recipe.training.precision]
    knobs = _written_knobs(recipe)
    transformer_class = MLATransformerConfig if recipe.architecture.multi_latent_attention else TransformerConfig
    transformer = {
        **_fields_of(transformer_class, knobs),
        **_architecture_fields(recipe),
        **_parallel_fields(recipe),
        **low_precision,
        # DDP gathers the parameters that layers keep in FP8 or FP4
        "fp8_param": recipe.knob("fp8_param_gather"),
        "fp4_param": recipe.knob("fp4_param_gather"),
        **fusions(recipe, transformer_engine=transformer_engine),
        "use_cpu_initialization": not torch.cuda.is_available(),
        "deterministic_mode": False,
        "attention_backend": AttnBackend[recipe.knob("attention_backend")],
        "bf16": bf16,
        "fp16": dtype == torch.float16,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
    }
    if not transformer_engine:
        transformer = compat.legacy_grouped_gemm(transformer)
    transformer = compat.graph_fields(transformer_class, transformer, whole_iteration=whole_iteration(recipe))
    transformer, missing = compat.supported(transformer_class, compat.one_sm_count(transformer, recipe.knobs))
    if lacking := recipe.architecture.model_dump(exclude_defaults=True).keys() & set(missing):
        raise ValueError(f"this Megatron-Core has no {', '.join(sorted(lacking))}, which the model has")
    missing = [name for name in missing if name in KNOBS]
    ddp = {
        "grad_reduce_in_fp32": bf16,
        "check_for_nan_in_grad": checks_for_nan(recipe),
        **_fields_of(DistributedDataParallelConfig, knobs),
    }
    optimizer = {
        "optimizer": "adam",
        "lr": 3e-4,
        "weight_decay": 0.0,
        "clip_grad": 1.0,
        "bf16": bf16,
        "fp16": dtype == torch.float16,
        "params_dtype": dtype,
        **_fields_of(OptimizerConfig, knobs),
        "fp8_recipe": low_precision.get("fp8_recipe"),  # decides where FP8 parameters keep their gradients
    }
    optimizer, _ = compat.supported(OptimizerConfig, optimizer)
    return MegatronConfigs(
        transformer=_with_yarn(recipe, transformer_class(**transformer)),
        ddp=DistributedDataParallelConfig(**ddp),
        optimizer=OptimizerConfig(**optimizer),
        unknown=(
            *missing,
            *_without_field(recipe, (transformer_class, DistributedDataParallelConfig, OptimizerConfig)),
        ),
    )


def checks_for_nan(recipe: Recipe) -> bool:
    """Returns whether loss and gradients are checked for NaN in every micro batch and bucket, as Megatron-LM does by
    default. Each check synchronises the GPU, so that a graph of the whole iteration cannot contain it. False on a CPU,
    which has no production run to match."""
    return not recipe.hardware.is_cpu and not whole_iteration(recipe)


def _written_knobs(recipe: Recipe) -> dict[str, Any]:
    """Returns every knob that has a value, defaults of the table included; lists as Megatron writes them."""
    values = {name: recipe.knob(name) for name in KNOBS}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}


def _fields_of(config_class: type, knobs: dict[str, Any]) -> dict[str, Any]:
    names = _names_of(config_class)
    return {name: _as_dtype(name, value) for name, value in knobs.items() if name in names}


def _names_of(config_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}


def _without_field(recipe: Recipe, classes: tuple[type, ...]) -> list[str]:
    """Returns the knobs that the recipe changes from their default and for which the installed Megatron-Core has no
    field."""
    known = compat.under_older_names(set().union(*map(_names_of, classes)))
    fields = (name for name, knob in KNOBS.items() if knob.megatron_core is not None)
    return [name for name in fields if name not in known and effective(recipe, name) != KNOBS[name].default]


def _as_dtype(name: str, value: Any) -> Any:
    """Returns optimizer dtypes as torch's; `moe_router_dtype` stays a word of Megatron's (fp32, fp64)."""
    return getattr(torch, value, value) if name.endswith("_dtype") and isinstance(value, str) else value


def _with_yarn(recipe: Recipe, config: Any) -> Any:
    """Sets the attributes that GPTModel reads for YaRN without latent attention, which are not fields of the class;
    returns the configuration."""
    model = recipe.architecture
    if model.yarn and not model.multi_latent_attention:
        for name in YARN:
            setattr(config, f"yarn_{name}", getattr(model, name))
        config.yarn_correction_range_round_to_int = model.yarn_correction_range_round_to_int
    return config


def _activations() -> dict[str, Any]:
    """Returns Megatron-Core's function of each activation."""
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu

    functional = torch.nn.functional
    return {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "quick_gelu": quick_gelu,
        "squared_relu": squared_relu,
    }


def _architecture_fields(recipe: Recipe) -> dict[str, Any]:
    model = recipe.architecture
    written = model.model_dump(exclude_none=True)
    elsewhere = NOT_IN_CONFIG if model.multi_latent_attention else {*NOT_IN_CONFIG, *ROTATION, *YARN, "rope_type"}
    fields = {name: value for name, value in written.items() if name not in elsewhere}
    for name in LISTS & fields.keys():
        fields[name] = list(fields[name]) if isinstance(fields[name], tuple) else fields[name]
    fields.setdefault("ffn_hidden_size", 4 * model.hidden_size)
    if model.multi_latent_attention:
        fields |= {"multi_latent_attention": True, "q_lora_rank": model.q_lora_rank}
    if model.num_moe_experts is None:
        fields["moe_aux_loss_coeff"] = 0.0
    else:
        fields.setdefault("moe_ffn_hidden_size", fields["ffn_hidden_size"])
    fields["activation_func"] = _activations()[model.activation]
    return fields


def _parallel_fields(recipe: Recipe) -> dict[str, Any]:
    sizes = recipe.parallelism.model_dump()
    chunks = layout_of(recipe).vpp
    sizes["virtual_pipeline_model_parallel_size"] = chunks if chunks > 1 else None
    sizes["expert_tensor_parallel_size"] = recipe.expert_tensor_parallel_size
    sizes["deallocate_pipeline_outputs"] = True  # Megatron-LM sets it, too
    sizes["batch_p2p_comm"] = not recipe.knob("overlap_p2p_comm")  # Megatron takes one or the other
    return sizes
