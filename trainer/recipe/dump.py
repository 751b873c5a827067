"""A recipe's plain data as YAML text that `load.py` reads back to the same recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def yaml_text(data: Mapping[str, Any]) -> str:
    """Returns the data as YAML: keys in their order, lists of plain values on one line."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=110)


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes lists of plain values on one line."""


def _flow_list(dumper: yaml.SafeDumper, values: list[Any] | tuple[Any, ...]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


_Dumper.add_representer(list, _flow_list)
_Dumper.add_representer(tuple, _flow_list)
