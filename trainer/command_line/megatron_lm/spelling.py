"""How `pretrain_gpt.py` of Megatron-LM spells a recipe: flags of the model, and of every knob.

Most knobs are spelled by their row in the knob table. Here is only what is spelled another way there: flags that
switch something off, other words for a value, a precision that takes three flags. Source: Megatron-LM main
d98e8a64, megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS, Knob

Spell = Callable[[Recipe, Any], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """A knob on the command line: `words` to write, else `why_not` says why nothing is written."""

    knob: str
    words: tuple[str, ...] = ()
    why_not: str = ""
    lost: bool = False  # the value matters and cannot be said


AT_DEFAULT = "at Megatron-LM's default or said by another flag"
INERT = "without effect beside the other knobs"

# Megatron-Core's field names of the architecture -> flag; what is absent here is spelled in `_model_words`.
MODEL_FLAGS = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "ffn_hidden_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "kv_channels": "--kv-channels",
    "num_moe_experts": "--num-experts",
    "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "--moe-shared-expert-intermediate-size",
    "moe_router_num_groups": "--moe-router-num-groups",
    "moe_router_group_topk": "--moe-router-group-topk",
    "q_lora_rank": "--q-lora-rank",
    "kv_lora_rank": "--kv-lora-rank",
    "qk_head_dim": "--qk-head-dim",
    "qk_pos_emb_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim",
    "mtp_num_layers": "--mtp-num-layers",
    "normalization": "--normalization",
    "position_embedding_type": "--position-embedding-type",
    "attention_dropout": "--attention-dropout",
    "hidden_dropout": "--hidden-dropout",
}
# Fields that few models move from Megatron's default: written where one does.
RARE_MODEL_FLAGS = {
    name: "--" + name.replace("_", "-")
    for name in (
        "softmax_type",
        "window_size",
        "window_attn_skip_freq",
        "moe_latent_size",
        "make_vocab_size_divisible_by",
        "experimental_attention_variant",
        "linear_attention_freq",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "mamba_num_heads",
        "mamba_head_dim",
        "mamba_state_dim",
        "mamba_num_groups",
    )
}
MODEL_SWITCHES = {
    "multi_latent_attention": (
        "--multi-latent-attention",
        "--rope-type",
        "rope",
        "--no-rope-fusion",
    ),  # fused: yarn only
    "gated_linear_unit": ("--swiglu",),
    "use_fused_weighted_squared_relu": ("--squared-relu", "--use-fused-weighted-squared-relu"),
    "qk_layernorm": ("--qk-layernorm",),
    "untie_embeddings_and_output_weights": ("--untie-embeddings-and-output-weights",),
    "add_qkv_bias": ("--add-qkv-bias",),
    "attention_output_gate": ("--attention-output-gate",),
    "moe_shared_expert_gate": ("--moe-shared-expert-gate",),
}

PRECISIONS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp8_delayed": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "delayed"),
    "fp8_current": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),
    "fp8_blockwise": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"),
    "mxfp8": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"),
}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}


def _dtype(flag: str) -> Spell:
    return lambda recipe, value: () if value == "float32" else (flag, DTYPES[value])


def _grad_reduce(recipe: Recipe, value: bool | None) -> tuple[str, ...]:
    """With --bf16 Megatron-LM reduces in fp32 unless told otherwise."""
    if value is None or recipe.training.precision == "fp32":
        return ()
    return ("--accumulate-allreduce-grads-in-fp32",) if value else ("--grad-reduce-in-bf16",)


def _virtual_stages(recipe: Recipe, value: int | None) -> tuple[str, ...]:
    """A layout text says them too, and Megatron-LM takes one or the other."""
    if recipe.knob("pipeline_model_parallel_layout") is not None or value is None or value == 1:
        return ()
    return ("--num-virtual-stages-per-pipeline-rank", str(value))


def _align_param_gather(recipe: Recipe, value: bool) -> tuple[str, ...]:
    """On unless switched off; it acts on overlapped gathers of interleaved stages only."""
    interleaved = (recipe.knob("virtual_pipeline_model_parallel_size") or 1) > 1
    return ("--no-align-param-gather",) if not value and interleaved and recipe.knob("overlap_param_gather") else ()


def _granularity(recipe: Recipe, value: str | None) -> tuple[str, ...]:
    """Selective recompute of no module is none: left to its default, Megatron-LM would recompute core_attn."""
    acting = effective(recipe, "recompute_granularity")
    return () if acting is None else ("--recompute-granularity", acting)


SPELLED: dict[str, Spell] = {
    "recompute_granularity": _granularity,
    "precision": lambda recipe, value: PRECISIONS[value],
    "grad_reduce_in_fp32": _grad_reduce,
    "virtual_pipeline_model_parallel_size": _virtual_stages,
    "overlap_p2p_comm": lambda recipe, value: () if value else ("--no-overlap-p2p-communication",),
    "align_param_gather": _align_param_gather,
    "main_grads_dtype": _dtype("--main-grads-dtype"),
    "main_params_dtype": _dtype("--main-params-dtype"),
    "exp_avg_dtype": _dtype("--exp-avg-dtype"),
    "exp_avg_sq_dtype": _dtype("--exp-avg-sq-dtype"),
    "cpu_offloading": lambda recipe, value: (),  # said by --cpu-offloading-num-layers
    # Megatron-LM refuses any other checkpoint format beside it, whether it writes one or not
    "use_megatron_fsdp": lambda recipe, value: (
        ("--use-megatron-fsdp", "--ckpt-format", "fsdp_dtensor") if value else ()
    ),
}


def knob_spellings(recipe: Recipe) -> list[Spelling]:
    """Every knob that is not an environment variable, in the table's order."""
    return [_spelling(recipe, knob) for knob in KNOBS.values() if knob.acts != "environment" and not _exported(knob)]


def environment(recipe: Recipe) -> dict[str, str]:
    """Environment variables of the recipe that have a value."""
    variables = {name: recipe.knob(name) for name, knob in KNOBS.items() if knob.acts == "environment"}
    variables["OMP_NUM_THREADS"] = recipe.knob("threads_per_rank")
    return {name: str(value) for name, value in variables.items() if value is not None}


def model_words(recipe: Recipe) -> list[tuple[str, ...]]:
    """The architecture, a group of words a line."""
    model = recipe.architecture
    written = model.model_dump()
    lines: list[tuple[str, ...]] = [
        (flag, str(written[name])) for name, flag in MODEL_FLAGS.items() if written[name] is not None
    ]
    if model.num_query_groups is not None and not model.multi_latent_attention:
        lines.append(("--group-query-attention", "--num-query-groups", str(model.num_query_groups)))
    if model.num_moe_experts is not None:
        lines += [("--moe-router-topk", str(model.moe_router_topk)), ("--moe-layer-freq", _layer_frequency(recipe))]
        lines += [("--moe-router-score-function", model.moe_router_score_function), ("--moe-aux-loss-coeff", "0.01")]
    moved = model.model_dump(exclude_defaults=True)
    lines += [(flag, _listed(moved[name])) for name, flag in RARE_MODEL_FLAGS.items() if name in moved]
    switches = [words for name, words in MODEL_SWITCHES.items() if written[name]]
    biases = [] if model.add_bias_linear else [("--disable-bias-linear",)]
    return [*lines, *switches, *biases, ("--max-position-embeddings", str(recipe.training.seq_length))]


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layer_frequency(recipe: Recipe) -> str:
    """As a number, or as the Python list that Megatron-LM evaluates."""
    frequency = recipe.architecture.moe_layer_freq
    return str(list(frequency)).replace(" ", "") if isinstance(frequency, tuple) else str(frequency)


def _exported(knob: Knob) -> bool:
    return knob.name == "threads_per_rank"


def _spelling(recipe: Recipe, knob: Knob) -> Spelling:
    value = recipe.knob(knob.name)
    if not acts(recipe, knob.name):
        return Spelling(knob=knob.name, why_not=INERT)
    if knob.name in SPELLED:
        words = SPELLED[knob.name](recipe, value)
        return Spelling(knob=knob.name, words=words, why_not="" if words else AT_DEFAULT)
    if (knob.default_from == "megatron" and value == knob.default) or value in (None, ()):
        return Spelling(knob=knob.name, why_not=AT_DEFAULT)
    if knob.megatron_lm is None or value is False:
        at_rest = value == knob.default
        return Spelling(knob=knob.name, why_not=AT_DEFAULT if at_rest else "it has no flag", lost=not at_rest)
    return Spelling(knob=knob.name, words=(knob.megatron_lm, *_values(value)))


def _values(value: Any) -> tuple[str, ...]:
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
