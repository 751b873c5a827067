"""Reads Megatron-Bridge's configuration, from overrides `section.key=value` or a whole ConfigContainer, as parts of a
recipe. Knobs are found by their path in the knob table, fields of the model by their name below `model.`, which is
Megatron-Core's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from trainer.frameworks.megatron_bridge.overrides import ALSO, UNSET
from trainer.frameworks.megatron_bridge.packing import packing_paths
from trainer.frameworks.megatron_bridge.precision import NAMES
from trainer.frameworks.megatron_lm.read import FP8_RECIPES
from trainer.frameworks.packing import kept_packing
from trainer.frameworks.reading import Kept, Reading
from trainer.recipe.architecture import Architecture
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import presets

OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_WHOLE = re.compile(r"[+~]{0,2}(mixed_precision)=(.*)", re.DOTALL)  # a section given by a single word
MODEL = "model."
# Further paths that set a knob: comm_overlap and mixed_precision are applied over ddp and model
OTHER_PATHS = {
    "model.cuda_graph_modules": "cuda_graph_scope",
    "ddp.overlap_grad_reduce": "overlap_grad_reduce",
    "ddp.overlap_param_gather": "overlap_param_gather",
    "model.overlap_moe_expert_parallel_comm": "overlap_moe_expert_parallel_comm",
    "model.delay_wgrad_compute": "delay_wgrad_compute",
    "model.tp_comm_overlap": "tp_comm_overlap",
    "model.overlap_p2p_comm": "overlap_p2p_comm",
    "ddp.fp8_param_gather": "fp8_param_gather",
    "mixed_precision.grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "comm_overlap.bucket_size": "bucket_size",
    "model.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
    "model.moe_router_padding_for_fp8": "moe_router_padding_for_quantization",
}
# what follows the model in a recipe's name, from the kind of training or the number of GPUs on
_REST_OF_NAME = re.compile(r"_(?:pretrain|sft|finetune|peft|lora|no_mtp|\d+gpu|config)(?:_|$)")
_TEXT_MODEL = {"vl", "text"}
_NO_MARKS = str.maketrans("", "", "-.")
_PRECISION_OF = {name: precision for precision, name in NAMES.items()}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "quick_gelu": "quick_gelu", "squared_relu": "squared_relu"}


# values that overrides have in place of null, which Bridge does not accept there
_MEANS_NULL = {("transformer_impl", "transformer_engine"), *UNSET.items()}


def is_override(word: str) -> bool:
    return OVERRIDE.fullmatch(word) is not None


def read_overrides(words: Sequence[str]) -> Reading:
    """Reads a command line of Bridge, without its program; of equal paths the last one counts."""
    model: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    unread: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        if _KNOB_AT.get(word.removeprefix("~")) in knobs and word.startswith("~"):
            del knobs[_KNOB_AT[word.removeprefix("~")]]
            continue
        match = OVERRIDE.fullmatch(word) or _WHOLE.fullmatch(word)
        path, value = (match[1], _hydra(match[2])) if match else ("", None)
        if not match or not _take(path, value, model, knobs, unread):
            rest.append(word)
    if knobs.get("pipeline_model_parallel_layout") is not None:
        knobs.pop("virtual_pipeline_model_parallel_size", None)  # the layout implies it
    kept = (*_kept(unread), *kept_packing(packing_of(words)))
    return Reading(model=model, knobs=knobs, rest=tuple(rest), kept=kept, passed=_passed(rest))


def packing_of(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the paths of the overrides that pack sequences; of equal paths the last counts."""
    matches = (OVERRIDE.fullmatch(word) for word in words)
    return packing_paths({match[1]: _hydra(match[2]) for match in matches if match}.items())


def read_config(config: Mapping[str, Any]) -> Reading:
    """Reads a ConfigContainer as Bridge writes it; ignores keys that no recipe decides."""
    model: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for path, value in _flat(config, ""):
        _take(path, value, model, knobs, unread)
    if precision := _precision(config):
        knobs["precision"] = precision
    kept = (*_kept(unread), *kept_packing(packing_paths(_flat(config, ""))))
    return Reading(model=_whole_model(config, model), knobs=_plain_knobs(knobs), kept=kept)


def preset_of(recipe_name: str) -> str | None:
    """Returns the preset that a Bridge recipe is named after; None if there is none, or several.

    The name begins with the preset's (qwen3_30b_a3b_pretrain_config), or leaves out some of its words
    (nemotron_3_nano_pretrain_config → nemotron-3-nano-30b-a3b). A vision-language model's is that of its text model.
    """
    model = _REST_OF_NAME.split(recipe_name.lower())[0]
    words = [word for word in model.split("_") if word not in _TEXT_MODEL]
    starts = {"".join(words[:count]) for count in range(1, len(words) + 1)}
    if named := [name for name in presets() if name.translate(_NO_MARKS) in starts]:
        return max(named, key=len)
    longer = [name for name in presets() if _leaves_out(words, name.replace(".", "").split("-"))]
    return longer[0] if len(longer) == 1 else None


def _leaves_out(words: Sequence[str], of: Sequence[str]) -> bool:
    """Returns true if `words` are some words of `of` in its order, the first among them."""
    rest = iter(of)
    return len(words) > 1 and words[0] == of[0] and all(word in rest for word in words)


def _passed(rest: Sequence[str]) -> tuple[str, ...]:
    """Returns the paths of the overrides in `rest`, and its flags without their values, each once."""
    matches = ((OVERRIDE.fullmatch(word), word) for word in rest)
    names = (match[1] if match else word.partition("=")[0] for match, word in matches if match or word.startswith("-"))
    return tuple(dict.fromkeys(names))


def _kept(unread: Mapping[str, str]) -> tuple[Kept, ...]:
    return tuple(Kept(words=path, why=why) for path, why in unread.items())


def _take(path: str, value: Any, model: dict[str, Any], knobs: dict[str, Any], unread: dict[str, str]) -> bool:
    """Adds the value at `path` to `model` or `knobs` and returns True; False if no field or knob is at `path`, or if it
    does not take the value (the reason is added to `unread`)."""
    name = _KNOB_AT.get(path)
    if name == "precision":
        if isinstance(value, dict):
            return _take_precision(value, knobs)
        value = "fp32" if value is None else value  # null means float32, the type of the model
        value = _PRECISION_OF.get(str(value), value)
    if name is not None:
        value = KNOBS[name].domain.canonical(_plain(value))
        value = None if (name, value) in _MEANS_NULL else value
        if problem := KNOBS[name].domain.problem(value):
            unread[path] = problem
            return False
        knobs[name] = value
        return True
    field = path.removeprefix(MODEL)
    if not path.startswith(MODEL) or field not in Architecture.model_fields:
        return False
    value = _MODEL_VALUES.get(field, _plain)(value)
    if problem := _model_problem(field, value):
        unread[path] = problem
        return False
    model[field] = value
    return True


def _take_precision(fields: Mapping[str, Any], knobs: dict[str, Any]) -> bool:
    """Adds a complete mixed-precision object to the knobs: its format, and the knobs among its fields.

    Returns false if it has no known format.
    """
    precision = _precision({"mixed_precision": fields})
    if precision is None:
        return False
    knobs["precision"] = precision
    for field, value in fields.items():
        name = _KNOB_AT.get(f"mixed_precision.{field}", field)
        if name in KNOBS and KNOBS[name].domain.problem(value) is None:
            knobs[name] = value
    return True


def _model_problem(field: str, value: Any) -> str | None:
    if value is None:
        return None
    least: dict[str, Any] = {"num_layers": 1, "hidden_size": 1, "num_attention_heads": 1, "vocab_size": 1}
    try:
        Architecture(**{**least, field: value})
    except ValidationError as error:
        return f"{value!r}: {error.errors()[0]['msg'].lower()}"
    return None


def _flat(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and not str(key).startswith("_"):
            if "_target_" in value and path.count(".") and "_call_" in value:
                yield path, value
            else:
                yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _precision(config: Mapping[str, Any]) -> str | None:
    """Returns the precision, by name or by the fields of a mixed-precision configuration; None if neither gives it."""
    written = config.get("mixed_precision")
    if isinstance(written, str):
        return _PRECISION_OF.get(written)
    fields = written if isinstance(written, dict) else config.get("model") or {}
    if fields.get("fp4"):
        return "nvfp4"
    if fields.get("fp8"):
        return FP8_RECIPES.get(str(fields.get("fp8_recipe")))
    if fields.get("fp16"):
        return "fp16"
    if fields.get("bf16"):
        return "bf16"
    return "fp32" if isinstance(written, dict) or "bf16" in fields else None


def _whole_model(config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Returns the model's fields that are not null, with the activation's function by name and left out if the gate
    implies it."""
    section = config.get("model") or {}
    made = dict(model)
    if "activation_func" in section:
        made["activation_func"] = _function(section["activation_func"])
    if made.get("activation_func") == ("silu" if made.get("gated_linear_unit") else "gelu"):
        made.pop("activation_func")  # the activation that the gate implies
    return {name: value for name, value in made.items() if value is not None}


def _plain_knobs(knobs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if value is not None or KNOBS[name].domain.nullable}


def _function(value: Any) -> str | None:
    """Returns the activation whose function is named: {_target_: torch.nn.functional.silu, _call_: false} → silu."""
    name = value.get("_target_") if isinstance(value, dict) else value
    return _ACTIVATIONS.get(str(name).rpartition(".")[2])


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and "_target_" in value:  # an enum or a dtype
        arguments = value.get("_args_") or [value["_target_"]]
        value = arguments[0]
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.removeprefix("torch.") if isinstance(value, str) else value


def _hydra(text: str) -> Any:
    """Parses a value in Hydra's override grammar: quoted text stays text, the rest is read as YAML."""
    try:
        if text.startswith("{"):
            text = re.sub(r"([{,]\s*\w+):", r"\1: ", text)
        return yaml.safe_load(re.sub(r",(?=\S)", ", ", text) if text.startswith(("[", "{")) else text)
    except yaml.YAMLError:
        return text


def _layers(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_MODEL_VALUES: dict[str, Callable[[Any], Any]] = {
    "activation_func": _function,
    "moe_layer_freq": _layers,
    "window_size": _layers,
    "window_attn_skip_freq": _layers,
    "no_rope_freq": _layers,
    **{
        name: lambda value: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, field in Architecture.model_fields.items()
        if field.annotation in (float, float | None)
    },
}
_KNOB_AT: dict[str, str] = {
    **OTHER_PATHS,
    **{knob.megatron_bridge: name for name, knob in KNOBS.items() if knob.megatron_bridge},
    **{path: name for name, paths in ALSO.items() for path in paths},
}
