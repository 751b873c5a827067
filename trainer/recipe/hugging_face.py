"""Reads a model from the `config.json` of Hugging Face transformers into Megatron-Core's field names.

`hugging_face.csv` has one row per field and family: the key there, the field here, the conversion. Rows without a field
list keys that do not change the model, some of them at one value only; a key without a row is reported as unread.
Source: the configuration and modelling files of transformers 4.57 and 5.23, src/transformers/models/<model_type>, and
those shipped with models (bailing_moe, minimax_text_01).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trainer.errors import BadInputError, refused
from trainer.recipe.architecture import Architecture
from trainer.recipe.files import text_of
from trainer.recipe.source import nearest
from trainer.recipe.tables import read_table

Config = Mapping[str, Any]
SHOWN = 60  # most characters of a value in a message
MAX_MIB = 8  # a config.json with labels of 20,000 classes has a few MiB
_YARN = {
    "factor": "rotary_scaling_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}


def model_types() -> tuple[str, ...]:
    """Returns the model families of the table."""
    return tuple(dict.fromkeys(kind for row in _rows() for kind in row["model_types"].split() if kind != "*"))


def is_hugging_face(data: Any) -> bool:
    """Returns whether data are a configuration of a transformers language model, which has a `model_type`."""
    return isinstance(data, dict) and isinstance(data.get("model_type"), str)


def model_fields(data: Config, *, where: str) -> dict[str, Any]:
    """Returns the fields of the architecture.

    Raises BadInputError for a family that is not in the table, a value that cannot be read, or a config without sizes.
    """
    config = _language_part(data)
    kind = str(config.get("model_type"))
    if kind not in model_types():
        likely = nearest(kind, model_types())
        raise refused(
            where,
            f"model_type {kind!r} is not known",
            f"{f'did you mean {likely}? ' if likely else ''}There are {', '.join(model_types())}; "
            "write the model's own fields for another",
        )
    fields: dict[str, Any] = {}
    for row in _rows_of(kind):
        try:
            found = _field(row, config) if row["field"] else {}
        except ValueError as error:
            raise refused(where, str(error), "write the model's own fields") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError):
            value = json.dumps(config.get(row["key"]))
            raise refused(
                where, f"{row['key']}: {value[:SHOWN]} cannot be read", "write the model's own fields"
            ) from None
        fields |= {name: value for name, value in found.items() if name not in fields or row["key"]}
    known = {name: value for name, value in fields.items() if name in Architecture.model_fields}
    given = {name: value for name, value in known.items() if value is not None}
    lacking = [name for name, field in Architecture.model_fields.items() if field.is_required() and name not in given]
    lacking += _experts_lacking(kind, given)
    if lacking:
        raise refused(where, f"it does not say {', '.join(lacking)}", "name the whole config.json of the model")
    return given


def parts_left_out(data: Config) -> tuple[str, ...]:
    """Returns the keys of parts that are not the language model: vision towers, audio encoders."""
    if _language_part(data) is data:
        return ()
    parts = (key for key, value in data.items() if key.endswith("_config") and isinstance(value, dict))
    return tuple(key for key in parts if key not in ("text_config", "quantization_config"))


def keys_unread(data: Config) -> tuple[str, ...]:
    """Returns the keys of the language model that are not read and may change the model: unknown ones, and known ones
    at a value that Megatron-Core has no field for."""
    config = _language_part(data)
    effectless: dict[str, str] = {}
    read: set[str] = set()
    for row in _rows_of(str(config.get("model_type"))):
        keys = row["key"].split()
        if row["field"]:
            read |= set(keys)
        else:
            effectless |= dict.fromkeys(keys, row["form"])
    parts = (key for key, value in data.items() if key.endswith("_config") and isinstance(value, dict))
    known = {*read, *(key for key, form in effectless.items() if _has_no_effect(form, config.get(key))), *parts}
    odd = tuple(key for key in config if key not in known and not key.startswith("_") and "token_id" not in key)
    scaling = _rope_kind(config.get("rope_scaling") or config.get("rope_parameters") or {})
    return odd if scaling in _ROPES else (*odd, f"rope_scaling: {scaling}")


def _has_no_effect(form: str, value: Any) -> bool:
    """Returns whether a row without a field declares this value without effect; absent and null always are."""
    if form == "ignored" or value is None:
        return True
    word, _, text = form.partition(" ")
    expected = json.loads(text)
    return bool(value in expected if word == "in" else value == expected)


def _rows_of(kind: str) -> list[dict[str, str]]:
    return [row for row in _rows() if row["model_types"] == "*" or kind in row["model_types"].split()]


def _experts_lacking(kind: str, given: Mapping[str, Any]) -> list[str]:
    """Returns the missing key of the number of experts of an MoE family: without it the model would be dense.

    Else [].
    """
    keys = [row["key"] for row in _rows() if row["field"] == "num_moe_experts" and kind in row["model_types"].split()]
    return keys if keys and not given.get("num_moe_experts") else []


def read_config(path: Path, *, where: str) -> Config:
    """Returns the data of a `config.json`.

    Raises BadInputError if there is none, or it is not a configuration of transformers.
    """
    instead = "name a config.json of Hugging Face"
    try:
        data = json.loads(text_of(path, where=f"{where} {path}", instead=instead, most_mib=MAX_MIB))
    except FileNotFoundError:
        raise refused(
            where, f"no file {path}", "check the path; in a recipe it is meant from the recipe's folder"
        ) from None
    except RecursionError:
        raise refused(where, f"{path} is nested too deeply to be read", instead) from None
    except BadInputError:
        raise
    except ValueError as error:
        raise refused(where, f"{path} cannot be read: {error}", instead) from None
    if not is_hugging_face(data):
        raise refused(where, f"{path} has no model_type", instead)
    return dict(data)


@cache
def _rows() -> list[dict[str, str]]:
    return read_table("hugging_face.csv")


def _language_part(data: Config) -> Config:
    """Returns the part of the language model: multimodal models keep it in `text_config`."""
    inner = data.get("text_config")
    return inner if isinstance(inner, dict) and "num_hidden_layers" in inner else data


def _field(row: Mapping[str, str], config: Config) -> dict[str, Any]:
    name, form = row["field"], row["form"]
    if form.startswith("="):
        return {name: json.loads(form[1:])}
    if row["key"] not in config or config[row["key"]] is None:
        return {}
    value = config[row["key"]]
    made = _FORMS[form](value, config)
    return dict(made) if isinstance(made, dict) else {name: made}


def _sparse_step(step: int, config: Config) -> Any:
    """Returns one flag per layer, 1 for experts; or 1 if every layer has experts."""
    dense = set(config.get("mlp_only_layers") or ())
    flags = [int((layer + 1) % step == 0 and layer not in dense) for layer in range(config["num_hidden_layers"])]
    return 1 if all(flags) else tuple(flags)


def _first_dense(first: int, config: Config) -> Any:
    """Returns one flag per layer: dense layers first, then experts in every `moe_layer_freq`-th layer; 1 if every layer
    has experts."""
    every = config.get("moe_layer_freq") or 1
    flags = [int(layer >= first and layer % every == 0) for layer in range(config["num_hidden_layers"])]
    return 1 if all(flags) else tuple(flags)


def _linear(kinds: Any, config: Config) -> Any:
    """Returns N if every N-th layer keeps full attention; else one flag per layer, 1 for the linear mixer."""
    return _frequency([int(kind == "linear_attention") for kind in _by_layer(kinds, config)])


def _by_layer(values: Any, config: Config) -> list[Any]:
    """Returns the list if it has one value per layer. Raises ValueError for anything else."""
    layers = config.get("num_hidden_layers")
    if not isinstance(values, list) or len(values) != layers:
        raise ValueError(f"{json.dumps(values)[:SHOWN]} is not a list of one value for each of the {layers} layers")
    return values


def _frequency(flags: list[int]) -> int | tuple[int, ...]:
    every = flags.index(0) + 1 if 0 in flags else 0
    regular = every and flags == [int((layer + 1) % every != 0) for layer in range(len(flags))]
    return every if regular else tuple(flags)


def _mlp_types(kinds: Any, config: Config) -> Any:
    """Returns one flag per layer, 1 for experts; or 1 if every layer has experts."""
    flags = tuple(int(kind != "dense") for kind in _by_layer(kinds, config))
    return 1 if all(flags) else flags


def _between(first: int, config: Config) -> Any:
    """Returns one flag per layer: experts in every `moe_layer_interval`-th layer from a first to a last one; 1 if every
    layer has experts."""
    end, layers = config.get("moe_layer_end_index"), config["num_hidden_layers"]
    last = layers - 1 if end in (None, -1) else end
    every = config.get("moe_layer_interval") or 1
    flags = tuple(int((layer + 1) % every == 0 and first <= layer <= last) for layer in range(layers))
    return 1 if all(flags) else flags


def _jamba_attention(period: int, config: Config) -> Any:
    kept = config.get("attn_layer_offset", 0)
    return _frequency([int(layer % period != kept) for layer in range(config["num_hidden_layers"])])


def _jamba_experts(period: int, config: Config) -> Any:
    offset = config.get("expert_layer_offset", 0)
    return tuple(int(layer % period == offset) for layer in range(config["num_hidden_layers"]))


_LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-"}


def _letters(kinds: Any) -> str:
    """Returns the letter of each layer in Megatron-Core's hybrid pattern.

    Raises ValueError for a layer type that has none.
    """
    unknown = sorted({kind for kind in kinds if kind not in _LETTERS})
    if unknown:
        raise ValueError(f"layers of kind {', '.join(unknown)} have no letter in Megatron-Core's hybrid pattern")
    return "".join(_LETTERS[kind] for kind in kinds)


def _hybrid(pattern: str) -> dict[str, Any]:
    """Returns the fields of a hybrid pattern. Raises ValueError for a letter that Megatron-Core does not have."""
    unknown = "".join(sorted(set(pattern) - set(_LETTERS.values())))
    if unknown or not pattern:
        raise ValueError(f"{pattern!r} is no pattern of layers: {unknown or 'it is empty'}")
    return {
        "hybrid": pattern,
        "num_layers": len(pattern),
        "moe_layer_freq": tuple(int(letter == "E") for letter in pattern),
    }


def _alike(value: Any, config: Config) -> Any:
    """Returns the value, or the one value of a list by layer. Raises ValueError if layers differ."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise ValueError(f"a value that differs by layer: {value[:4]}")
    return value[0]


def _shared_alike(count: Any, config: Config) -> Any:
    return _alike(count, config) * _alike(config["moe_intermediate_size"], config) or None


def _relu2(word: str, config: Config) -> dict[str, Any]:
    """Returns the fields of squared ReLU. Raises ValueError for another activation."""
    if word != "relu2":
        raise ValueError(f"mlp_hidden_act {word!r} is not known")
    return {"activation_func": "squared_relu", "gated_linear_unit": False}


def _rope(scaling: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Returns the fields of a rotary scaling; since transformers 5 its mapping has `rope_theta` too."""
    kind = _rope_kind(scaling)
    fields: dict[str, Any] = {}
    if "rope_theta" in scaling:
        fields["rotary_base"] = float(scaling["rope_theta"])
    latent = "kv_lora_rank" in config
    if kind == "yarn":
        fields |= {field: scaling[key] for key, field in _YARN.items() if scaling.get(key) is not None}
        fields = {k: float(v) if k != "original_max_position_embeddings" else int(v) for k, v in fields.items()}
        fields |= {"rope_type": "yarn"} if latent else {"position_embedding_type": "yarn"}
        if "truncate" in scaling:
            fields["yarn_correction_range_round_to_int"] = bool(scaling["truncate"])
    elif kind == "llama3":
        fields |= {"use_rope_scaling": True, "rope_scaling_factor": float(scaling["factor"])}
    return fields


_ROPES = (None, "default", "yarn", "llama3")


def _rope_kind(scaling: Mapping[str, Any]) -> str | None:
    return scaling.get("rope_type") or scaling.get("type")


def _no_rope(layers: Any, config: Config) -> Any:
    """Returns N if every N-th layer has no rotary embedding; else one flag per layer, 1 for no rotary embedding; None
    if all layers have it."""
    flags = tuple(int(not rotates) for rotates in layers)
    if not any(flags):
        return None
    every = flags.index(1) + 1
    return every if flags == tuple(int((layer + 1) % every == 0) for layer in range(len(flags))) else flags


_FORMS: dict[str, Callable[[Any, Config], Any]] = {
    "": lambda value, config: value,
    "not": lambda value, config: not value,
    "number": lambda value, config: float(value),
    "positive": lambda value, config: value or None,
    "groups": lambda value, config: value if (config.get("n_group") or 1) > 1 else None,
    "scaling": lambda value, config: None if value == 1 else float(value),
    "shared": lambda value, config: value * config["moe_intermediate_size"] or None,
    "window": lambda value, config: (value, 0),
    "sparse_step": _sparse_step,
    "first_dense": _first_dense,
    "linear": _linear,
    "attn_types": lambda kinds, config: _frequency([1 - kind for kind in _by_layer(kinds, config)]),
    "mlp_types": _mlp_types,
    "between": _between,
    "jamba_attention": _jamba_attention,
    "jamba_experts": _jamba_experts,
    "pattern": lambda pattern, config: _hybrid(pattern),
    "blocks": lambda kinds, config: _hybrid(_letters(kinds)),
    "paired": lambda kinds, config: _hybrid("".join(f"{letter}E" for letter in _letters(kinds))),
    "mtp_blocks": lambda kinds, config: _letters(kinds),
    "relu2": _relu2,
    "alike": _alike,
    "shared_alike": _shared_alike,
    "whole": lambda value, config: value if isinstance(value, int) else None,
    "ratios": lambda ratios, config: tuple(ratios),
    "none": lambda value, config: None,
    "unrotated": lambda width, config: width - config["qk_rope_head_dim"],
    "rotary_dim": lambda width, config: width / config["head_dim"],
    "rope_share": lambda scaling, config: scaling.get("partial_rotary_factor"),
    "positions": lambda word, config: {"nope": "none"}.get(word, word),
    "rope": _rope,
    "no_rope": _no_rope,
}
