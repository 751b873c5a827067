"""Reads the JSON document of `moe-autotune probe`, and takes from it the constants that clearly differ from the
tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from autotune.probe.document import MovedFactor, ProbeDocument
from policies.surrogate.factors import Scale, factors, move_constants
from trainer.errors import refused
from trainer.estimate.gap.waterfall import Probed
from trainer.recipe import Recipe

# factors of one kind of kernel or message are one cause: a probe divides the time among them differently
CAUSES: dict[str, tuple[str, ...]] = {
    "links": (
        *("nvlink", "network", "alltoall", "deepep", "hybridep", "allgather", "latency", "notify", "spread"),
        *("collective_latency", "ep_slowed", "ep_contention", "ep_hidden", "ep_reach", "tp", "tp_overlap", "cp", "pp"),
        *("dp", "dp_exposed"),
    ),
    "products": ("gemm", "gemm_narrow", "grouped", "rows", "width", "attention"),
    "memory_bound": (
        "memory",
        "biased",
        "permute",
        "permute_apart",
        "permute_unfused",
        "quantize",
        "recompute",
        "loss",
    ),
    "host": ("host", "host_moe", "host_expert", "host_graphed", "host_overlap", "fixed", "overlap_power"),
    "optimizer": ("optimizer",),
}
PREFIX = "probed_"


def probed_in(file: Path, own: Recipe) -> Probed:
    """Returns the causes with a factor whose interval excludes the tables' value.

    Raises BadInputError for a file that is not a probe, or one of another GPU.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=ProbeDocument)
    except OSError as error:
        raise refused(str(file), f"it cannot be read: {error.strerror}", "name the file of a probe") from None
    except msgspec.MsgspecError:
        raise refused(str(file), "it is not a probe", "write it with `moe-autotune probe RECIPE --json`") from None
    gpu = own.cluster.gpu_name
    if found.gpu != gpu:
        raise refused(str(file), f"it is a probe of {found.gpu}, the run is on {gpu}", "probe its GPUs")
    moved = [each for each in found.factors if not each.low <= each.by_tables <= each.high]
    shifts = {each.factor: _shift(each) for each in moved}
    names = [f"{PREFIX}{cause}" for cause, factors in CAUSES.items() if set(factors) & set(shifts)]

    def constants(chosen: Sequence[str]) -> Mapping[str, float]:
        inside = {factor for name in chosen for factor in CAUSES[name.removeprefix(PREFIX)]}
        return move_constants({factor: shift for factor, shift in shifts.items() if factor in inside})

    return Probed(names=tuple(names), constants=constants)


def _shift(moved: MovedFactor) -> float:
    """Returns the measured factor minus the tables' one, on the factor's scale."""
    scale = next(factor.scale for factor in factors() if factor.name == moved.factor)
    if scale is Scale.PLAIN:
        return moved.value - moved.by_tables
    if scale is Scale.LOG:
        return math.log(moved.value / moved.by_tables)
    if scale is Scale.EXCESS:
        return math.log((moved.value - 1) / (moved.by_tables - 1))
    here, there = (math.log(share / (1 - share)) for share in (moved.value, moved.by_tables))
    return here - there
