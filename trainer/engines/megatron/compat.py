"""The differences between the supported releases of Megatron-Core: 0.16.1 (Python 3.11) and 0.19 (Python 3.12).

Code that depends on the version is here, except for the state that `forget.py` resets.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection
from typing import Any


def grouped_gemm_module() -> Any | None:
    """Returns the module in which legacy GroupedMLP looks up the grouped_gemm wheel; None in 0.19, which has none."""
    try:
        return importlib.import_module("megatron.core.transformer.moe.grouped_gemm_util")
    except ImportError:
        return None


def has_grouped_gemm() -> bool:
    """Returns whether Megatron-Core could import the grouped_gemm wheel, with which local layers group the experts'
    GEMMs."""
    return getattr(grouped_gemm_module(), "grouped_gemm", None) is not None


def has_transformer_engine() -> bool:
    """Returns whether Megatron-Core could import Transformer Engine, which may fail even if it is installed."""
    from megatron.core.models.gpt import gpt_layer_specs

    return bool(gpt_layer_specs.HAVE_TE)


def supported(config_class: type, fields: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Splits `fields` into those that the installed config class has and the names of those that it lacks."""
    known = {field.name for field in dataclasses.fields(config_class)}
    return {k: v for k, v in fields.items() if k in known}, sorted(set(fields) - known)


def legacy_grouped_gemm(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with the legacy GroupedMLP where they ask for grouped GEMM and the release has it: 0.16.1 has
    no other grouped GEMM without Transformer Engine. It has no biases: with biases experts run one after another."""
    if fields.get("add_bias_linear"):
        return {**fields, "moe_grouped_gemm": False}
    if fields.get("moe_grouped_gemm") and grouped_gemm_module() is not None:
        return {**fields, "moe_use_legacy_grouped_gemm": True}
    return fields


def one_sm_count(fields: dict[str, Any], written: Collection[str]) -> dict[str, Any]:
    """Returns the fields without the SM counts of flex backends that are not in use, or that the recipe does not write:
    0.19 has one count for any backend and refuses two different ones, and a backend has its own where none is given."""
    counts = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}
    own = {name for backend, name in counts.items() if backend == fields.get("moe_flex_dispatcher_backend")}
    idle = set(counts.values()) - (own & set(written))
    return {name: value for name, value in fields.items() if name not in idle}


# name from 0.18 on -> name before; the whole iteration was a scope before and is an impl since
RENAMED = {"cuda_graph_modules": "cuda_graph_scope"}


def under_older_names(fields: set[str]) -> set[str]:
    """Returns the names and, for renamed fields, also the earlier names, which knobs have."""
    return fields | {older for newer, older in RENAMED.items() if newer in fields}


def graph_fields(config_class: type, fields: dict[str, Any], *, whole_iteration: bool) -> dict[str, Any]:
    """Returns the fields for CUDA graphs as the installed release spells them: before 0.18, the whole iteration was a
    scope of local graphs."""
    if fields.get("cuda_graph_impl", "none") == "none":
        return {name: value for name, value in fields.items() if name != "cuda_graph_scope"}
    newer = "cuda_graph_modules" in {field.name for field in dataclasses.fields(config_class)}
    impl, scope = fields["cuda_graph_impl"], fields.get("cuda_graph_scope") or []
    if whole_iteration and newer and impl == "local":
        impl, scope = "full_iteration", [word for word in scope if word != "full_iteration"]
    elif impl == "full_iteration" and not newer and not scope:
        impl, scope = "local", ["full_iteration"]
    rest = {name: value for name, value in fields.items() if name != "cuda_graph_scope"}
    return {**rest, "cuda_graph_impl": impl, "cuda_graph_modules" if newer else "cuda_graph_scope": scope}
