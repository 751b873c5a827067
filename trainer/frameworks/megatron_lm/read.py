"""Reads Megatron-LM's arguments, from an argument list or a log, as parts of a recipe: the reverse of `spelling.py`.

An absent flag means Megatron-LM's default, which the recipe then has. Arguments that a recipe cannot express stay in
the user's own list, and are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from trainer.frameworks.megatron_lm.arguments import ARGUMENTS, ArgumentList, read_arguments
from trainer.frameworks.megatron_lm.flags import FLAGS
from trainer.frameworks.megatron_lm.model import acts_in
from trainer.frameworks.megatron_lm.settle import settled
from trainer.frameworks.reading import Kept, Reading
from trainer.launch_scripts.argv import join
from trainer.recipe.architecture import Architecture
from trainer.recipe.knobs import KNOBS

Values = Mapping[str, Any]
Reader = Callable[[Values], Any]

# Further names that set a field: deprecated spellings, and names that `settle` converts.
ALSO = {
    "recompute_granularity": ("recompute_activations",),
    "cuda_graph_impl": ("enable_cuda_graph", "external_cuda_graph"),
    "position_embedding_type": ("use_rotary_position_embeddings",),
    "num_layers": ("encoder_num_layers",),
    "seq_length": ("encoder_seq_length",),
    "moe_router_padding_for_quantization": ("moe_router_padding_for_fp8",),
    "moe_flex_dispatcher_backend": ("moe_enable_deepep",),
    "moe_deepep_num_sms": ("moe_flex_dispatcher_num_sms",),
    "moe_hybridep_num_sms": ("moe_flex_dispatcher_num_sms",),
    "gated_linear_unit": ("swiglu", "quick_geglu"),
    "num_query_groups": ("group_query_attention",),
}
# knob whose default differs between releases: the recipe leaves it open if its flag is not written
OPEN = "moe_hybridep_num_sms_preprocessing"
TOKENIZER = frozenset({"vocab_size"})  # names whose flags stay in the command, since the tokenizer decides
LATENT = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
)


def read(argv: Sequence[str], *, world_size: int | None, stays: frozenset[str] = frozenset()) -> Reading:
    """Reads an argument list (without the program) as parts of a recipe.

    `stays`: Megatron-LM's names whose words remain in the list although the recipe has them.
    """
    listed = read_arguments(argv)
    found = read_values(listed.values, world_size=world_size, written=listed.written)
    return _divided(listed, found, stays)


def read_values(values: Values, *, world_size: int | None, written: frozenset[str] | None = None) -> Reading:
    """Reads values by Megatron-LM's names. `written`: the names that a list sets; None if that is not known."""
    final = settled(values, world_size=world_size)
    if written is None or OPEN not in written:
        final[OPEN] = None
    model, unread = _model(values, final)
    knobs: dict[str, Any] = {}
    for name, reader in _KNOBS.items():
        value = reader(final)
        if value is None and not KNOBS[name].domain.nullable:
            continue  # not set: the knob keeps its default
        value = KNOBS[name].domain.canonical(value)
        if problem := KNOBS[name].domain.problem(value):
            unread[name] = problem
        else:
            knobs[name] = value
    missing = [flag for flag in ("--num-layers", "--hidden-size", "--num-attention-heads") if not final[_dest(flag)]]
    missing += [flag for flag in ("--seq-length", "--micro-batch-size") if not final[_dest(flag)]]
    return Reading(model=model, knobs=knobs, missing=tuple(missing), unread=unread)


def dests_of(field: str) -> frozenset[str]:
    """Returns Megatron-LM's names for a field of the model or a knob."""
    return _DESTS.get(field, frozenset())


def _divided(listed: ArgumentList, found: Reading, left: frozenset[str]) -> Reading:
    """Returns the reading with the rest of the list: the words that the recipe expresses are removed, others stay as
    written."""
    fields = [*found.model, *found.knobs]
    taken = {dest for field in fields if field not in TOKENIZER for dest in dests_of(field)}
    unread = {dest: why for field, why in found.unread.items() for dest in dests_of(field)}
    taken -= left
    stays = [read for read in listed.reads if not (read.argument and read.argument.dest in taken and not read.refused)]
    kept = [
        Kept(words=" ".join(read.words.argv), why=read.refused or unread[read.argument.dest])
        for read in stays
        if read.argument and (read.refused or read.argument.dest in unread)
    ]
    unknown = [read.words for read in stays if read.argument is None and read.words.flag]
    shown = {each.flag for each in unknown} | {each.words.split(" ")[0] for each in kept}
    rest = join(read.words for read in stays)
    flags = (word.partition("=")[0] for word in rest if word.startswith("--"))
    return replace(
        found,
        rest=rest,
        kept=tuple(kept),
        passed=tuple(dict.fromkeys(flag for flag in flags if flag not in shown)),
        own=tuple(" ".join(words.argv) for words in unknown),
    )


def _model(raw: Values, final: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (fields of the architecture, {field: the reason why its value cannot be read})."""
    fields = {name: reader(final) for name, reader in _MODEL.items()}
    if raw["ffn_hidden_size"] is None and (not final["swiglu"] or _no_dense_layers(final)):
        # unset means 4·hidden for both; with SwiGLU Megatron-LM takes another width
        fields["ffn_hidden_size"] = None
    given = {name: value for name, value in fields.items() if value is not None}
    least: dict[str, Any] = {"vocab_size": 1}
    try:
        model = Architecture(**least | given)
    except ValidationError as error:
        wrong = {
            str(each["loc"][0]): f"{each['input']!r}: {each['msg'].lower()}" for each in error.errors() if each["loc"]
        }
        required = {name for name, field in Architecture.model_fields.items() if field.is_required()}
        unread = {name: why for name, why in wrong.items() if name not in required}
        return {name: value for name, value in given.items() if name not in wrong}, unread
    return {name: value for name, value in given.items() if acts_in(model, name)}, {}


def _no_dense_layers(values: Values) -> bool:
    frequency = values["moe_layer_freq"]
    return bool(values["num_experts"]) and (frequency == 1 or (isinstance(frequency, (list, tuple)) and all(frequency)))


def _activation(values: Values) -> str | None:
    """Returns the activation; None if it is the one that the gate implies."""
    if values["quick_geglu"]:
        return "quick_gelu"
    return "squared_relu" if values["squared_relu"] else None


def _directly(dest: str) -> Reader:
    return lambda values: values.get(dest)


def _when(name: str, reader: Reader) -> Reader:
    return lambda values: reader(values) if values[name] else None


_MIXERS = {"gdn": "gated_delta_net"}  # the word from 0.20 on
_MODEL_BY_HAND: dict[str, Reader] = {
    "vocab_size": lambda values: values["padded_vocab_size"] or values["vocab_size"],
    "gated_linear_unit": lambda values: values["swiglu"] or values["quick_geglu"],
    "activation_func": _activation,
    "make_vocab_size_divisible_by": lambda values: (
        None if values["make_vocab_size_divisible_by"] == 1 else values["make_vocab_size_divisible_by"]
    ),
    # implied by the other field
    "add_qkv_bias": lambda values: values["add_qkv_bias"] and not values["add_bias_linear"],
    "num_query_groups": lambda values: values["num_query_groups"] if values["group_query_attention"] else None,
    "rope_type": _when("multi_latent_attention", _directly("rope_type")),
    "mtp_num_layers": lambda values: values["mtp_num_layers"] or None,
    "hybrid": _directly("hybrid_layer_pattern"),
    "experimental_attention_variant": lambda values: _MIXERS.get(
        values["experimental_attention_variant"], values["experimental_attention_variant"]
    ),
    "mtp_hybrid_override_pattern": _directly("mtp_hybrid_override_pattern"),
    "window_size": _directly("window_size"),
    **{name: _when("multi_latent_attention", _directly(name)) for name in LATENT},
}


FP8_RECIPES = {"delayed": "fp8_delayed", "tensorwise": "fp8_current", "blockwise": "fp8_blockwise", "mxfp8": "mxfp8"}


def _precision(values: Values) -> str:
    if values["fp16"]:
        return "fp16"
    if not values["bf16"]:
        return "fp32"
    if values["fp4"]:
        return str(values["fp4_recipe"])
    return FP8_RECIPES.get(values["fp8_recipe"], str(values["fp8_recipe"])) if values["fp8"] else "bf16"


def _grad_reduce(values: Values) -> bool | None:
    """Returns whether gradients are reduced in fp32; None if that is what the precision implies."""
    value = bool(values["accumulate_allreduce_grads_in_fp32"])
    return None if value == bool(values["bf16"]) and not values["fp16"] else value


def _moe(reader: Reader) -> Reader:
    return lambda values: reader(values) if values["num_experts"] else None


_KNOBS_BY_HAND: dict[str, Reader] = {
    "precision": _precision,
    "grad_reduce_in_fp32": _grad_reduce,
    "virtual_pipeline_model_parallel_size": lambda values: (
        None if values["pipeline_model_parallel_layout"] else values["virtual_pipeline_model_parallel_size"]
    ),
    "transformer_impl": lambda values: (
        None if values["transformer_impl"] == "transformer_engine" else values["transformer_impl"]
    ),
    "cpu_offloading": lambda values: values["cpu_offloading_num_layers"] > 0,
    "cuda_graph_scope": lambda values: values["cuda_graph_scope"] or None,
    "offload_modules": lambda values: values["offload_modules"] or None,
    "cp_comm_type": lambda values: None if values["cp_comm_type"] == "p2p" else values["cp_comm_type"],
    "moe_token_dispatcher_type": _moe(_directly("moe_token_dispatcher_type")),
    "data_parallel_sharding_strategy": _when("use_megatron_fsdp", _directly("data_parallel_sharding_strategy")),
    "optimizer_offload_fraction": _when("optimizer_cpu_offload", _directly("optimizer_offload_fraction")),
}


def _dest(flag: str) -> str:
    return ARGUMENTS[flag].dest


def _fields(part: str) -> dict[str, list[str]]:
    """Returns {field of a part of the flag table: the names that its flags set}."""
    found: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.part == part and flag.field and flag.flag in ARGUMENTS:
            found.setdefault(flag.field, []).append(_dest(flag.flag))
    return found


_DIRECT_MODEL = {name: dests for name, dests in _fields("model").items() if name in Architecture.model_fields}
_DIRECT_KNOBS = _fields("knob")
_MODEL: dict[str, Reader] = {
    **{name: _directly(dests[0]) for name, dests in _DIRECT_MODEL.items()},
    **{name: reader for name, reader in _MODEL_BY_HAND.items() if name in Architecture.model_fields},
}
_KNOBS: dict[str, Reader] = {**{name: _directly(dests[0]) for name, dests in _DIRECT_KNOBS.items()}, **_KNOBS_BY_HAND}
_DESTS: dict[str, frozenset[str]] = {
    name: frozenset(_fields("model").get(name, []) + _DIRECT_KNOBS.get(name, []) + list(ALSO.get(name, ())))
    for name in {*_MODEL, *_KNOBS}
} | {"precision": frozenset(map(_dest, (flag.flag for flag in FLAGS if flag.part == "precision")))}
