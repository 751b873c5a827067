"""A recipe as YAML text that `load.py` reads back to the same recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from trainer.recipe.knobs import KNOBS

if TYPE_CHECKING:
    from trainer.recipe.schema import Recipe


def recipe_yaml(recipe: Recipe, *, resolved: bool) -> str:
    """`resolved` writes every default, knobs included; otherwise only what differs from them."""
    data = recipe.model_dump(mode="json", exclude_defaults=not resolved)
    if resolved:
        data["knobs"] = {name: _plain(recipe.knob(name)) for name, knob in KNOBS.items() if knob.section == "knobs"}
        data["cluster"] |= {
            "gpus_per_node": recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node,
            "memory_gib": recipe.memory_limit_gib,
        }
    data["cluster"] = {"gpu": recipe.cluster.gpu, **data.get("cluster", {})}
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=110)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line."""


def _flow_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


_Dumper.add_representer(list, _flow_list)
