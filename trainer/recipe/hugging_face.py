"""A model from the `config.json` of Hugging Face transformers, in Megatron-Core's field names.

One row of `hugging_face.csv` a field and family: the key there, the field here, how one becomes the other. Source: the
configuration and modelling files of transformers 4.57, src/transformers/models/<model_type>.
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
MOST_MIB = 8  # those with labels of 20,000 classes hold a few
_YARN = {
    "factor": "rotary_scaling_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}


def model_types() -> tuple[str, ...]:
    """The families that the table knows."""
    return tuple(dict.fromkeys(kind for row in _rows() for kind in row["model_types"].split() if kind != "*"))


def is_hugging_face(data: Any) -> bool:
    """Returns whether data are a configuration of transformers: those of language models have a `model_type`."""
    return isinstance(data, dict) and isinstance(data.get("model_type"), str)


def model_fields(data: Config, *, where: str) -> dict[str, Any]:
    """Fields of the architecture. BadInputError for a family that is not in the table, or a config without sizes."""
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
    for row in _rows():
        if row["model_types"] == "*" or kind in row["model_types"].split():
            try:
                found = _field(row, config)
            except ValueError as error:
                raise refused(where, str(error), "write the model's own fields") from None
            fields |= {name: value for name, value in found.items() if name not in fields or row["key"]}
    known = {name: value for name, value in fields.items() if name in Architecture.model_fields}
    said = {name: value for name, value in known.items() if value is not None}
    lacking = [name for name, field in Architecture.model_fields.items() if field.is_required() and name not in said]
    lacking += _experts_lacking(kind, said)
    if lacking:
        raise refused(where, f"it does not say {', '.join(lacking)}", "name the whole config.json of the model")
    return said


def parts_left_out(data: Config) -> tuple[str, ...]:
    """Keys of parts beside the language model: vision towers, audio encoders."""
    if _language_part(data) is data:
        return ()
    parts = (key for key, value in data.items() if key.endswith("_config") and isinstance(value, dict))
    return tuple(key for key in parts if key not in ("text_config", "quantization_config"))


def _experts_lacking(kind: str, said: Mapping[str, Any]) -> list[str]:
    """The key of a mixture's number of experts where it is not written: without it the model would be dense."""
    keys = [row["key"] for row in _rows() if row["field"] == "num_moe_experts" and kind in row["model_types"].split()]
    return keys if keys and not said.get("num_moe_experts") else []


def read_config(path: Path, *, where: str) -> Config:
    """A `config.json`. BadInputError where there is none, or it is no configuration of transformers."""
    instead = "name a config.json of Hugging Face"
    try:
        data = json.loads(text_of(path, where=f"{where} {path}", instead=instead, most_mib=MOST_MIB))
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
    """Models that also see keep their language model's settings below `text_config`."""
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
    """A flag a layer, or 1 where every layer has experts."""
    dense = set(config.get("mlp_only_layers") or ())
    flags = [int((layer + 1) % step == 0 and layer not in dense) for layer in range(config["num_hidden_layers"])]
    return 1 if all(flags) else tuple(flags)


def _first_dense(first: int, config: Config) -> Any:
    """Dense layers at the start, then every `moe_layer_freq`-th has experts."""
    every = config.get("moe_layer_freq") or 1
    flags = [int(layer >= first and layer % every == 0) for layer in range(config["num_hidden_layers"])]
    return 1 if all(flags) else tuple(flags)


def _full_every(kinds: Any, config: Config) -> int:
    """N where every N-th layer keeps full attention. ValueError for another order, which no recipe can say."""
    full = [layer + 1 for layer, kind in enumerate(kinds) if kind == "full_attention"]
    every = full[0] if full else 0
    if not full or full != list(range(every, len(kinds) + 1, every)):
        raise ValueError(f"layer_types: its full attention layers are {full}, not every N-th")
    return every


def _rope(scaling: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Fields of a way to scale rotation; theta stands here too from transformers 5 on."""
    kind = scaling.get("rope_type") or scaling.get("type")
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


def _no_rope(layers: Any, config: Config) -> Any:
    """Every N-th layer, or a flag a layer: 1 where there is no rotation."""
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
    "full_every": _full_every,
    "rope": _rope,
    "no_rope": _no_rope,
}
