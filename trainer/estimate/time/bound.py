"""The error interval of a step-time estimate, and its distance from the runs that its constants were fitted to.

`time_calibration.csv` holds, for each feature a recipe can have, the published runs that have it and their errors when
their own cell (model and GPU) was left out; `benchmarks/estimate_accuracy.py time` makes it. A feature without a run,
longer sequences and more ranks than any run widen the interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, Integers
from trainer.estimate.memory.bound import FEATURES
from trainer.model.mixers import mixers
from trainer.model.shares import model_shares
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import UNFITTED, known_hardware
from trainer.recipe.knobs import KNOBS
from trainer.recipe.tables import figure, read_table

FEATURE_SPREAD = 0.10  # added to the half width per feature that no run has: effect of a single knob in effects.csv
DOUBLING_SPREAD = 0.05  # added to the half width per doubling of sequence length or ranks beyond those of the runs
# relative half width of the interval of the ratio of two throughputs, of one model and GPU: it contains 90 % of the
# pairs of published runs, predicted without their cell
PAIR_SPREAD = 0.20
MAX_SPREAD = 0.9
OFFLOADS = ("activation offload", "layer offload", "optimizer offload")


def _on(name: str) -> Callable[[Candidates], Flags]:
    return lambda candidates: np.full((), candidates.base.hardware.name == name)


def _is_unfitted(candidates: Candidates) -> Flags:
    return np.full((), candidates.base.hardware.fitted_as == UNFITTED)


def _figure_is_unknown(candidates: Candidates) -> Flags:
    return candidates.where("precision", lambda name: bool(candidates.base.hardware.unknown(name)))


def _in(name: str) -> Callable[[Candidates], Flags]:
    return lambda candidates: candidates.among("precision", name)


def _mixes(name: str) -> Callable[[Candidates], Flags]:
    return lambda candidates: np.full((), name in model_shares(candidates.base.architecture).mixers)


UNFITTED_ARCHITECTURE = "an architecture without fitted constants"
UNKNOWN_FIGURE = "a GPU with a figure that is not known"
# features of the memory estimate, and those that affect only the time
TIME_FEATURES: dict[str, Callable[[Candidates], Flags]] = (
    FEATURES
    | {f"GPU {name}": _on(name) for name, gpu in known_hardware().items() if not gpu.is_cpu}
    | {UNFITTED_ARCHITECTURE: _is_unfitted, UNKNOWN_FIGURE: _figure_is_unknown}
    | {f"{name} layers": _mixes(name) for name in mixers() if name not in ("attention", "none")}
    | {f"precision {name}": _in(name) for name in KNOBS["precision"].domain.words if name != "fp32"}
    | {
        "tensor parallel": lambda c: c.tp > 1,
        "linear layers over context ranks": lambda c: (c.cp > 1) & bool(model_shares(c.base.architecture).scans),
        "EP overlap": lambda c: c.on("overlap_moe_expert_parallel_comm"),
        "whole-iteration CUDA graphs": lambda c: c.whole_iteration,
        "natural routing": lambda c: ~c.on("moe_router_force_load_balancing") & (c.ep > 1),
    }
)


@dataclass(frozen=True, kw_only=True)
class TimeCalibration:
    """Errors against published throughput, in percent; each run was predicted without its own cell (model and GPU)."""

    rows: int
    cells: int
    median_pct: float
    p90_pct: float
    longest: float  # longest sequence of the runs, tokens
    ranks: float  # most GPUs of a run


@cache
def time_calibrations() -> dict[str, TimeCalibration]:
    """Returns the calibration of each group of runs, by the group's name in `time_calibration.csv`."""
    table = "time_calibration.csv"
    return {
        row["group"]: TimeCalibration(
            rows=int(figure(row, "rows", table=table)),
            cells=int(figure(row, "cells", table=table)),
            median_pct=figure(row, "median_pct", table=table),
            p90_pct=figure(row, "p90_pct", table=table),
            longest=figure(row, "longest", table=table),
            ranks=figure(row, "ranks", table=table),
        )
        for row in read_table(table, package="trainer.estimate.time")
    }


def time_calibration(candidates: Candidates) -> TimeCalibration:
    """Returns the calibration of the runs most similar to these candidates: those of the model's family."""
    return time_calibrations()[family(candidates.base.architecture)]


def family(model: Architecture) -> str:
    """Returns the family of models by which errors are counted: hybrids (layers that scan), other MoE, other dense."""
    if model_shares(model).scans:
        return "hybrid"
    return "MoE" if model.num_moe_experts else "dense"


def never_timed(candidates: Candidates) -> dict[str, Flags]:
    """Returns {feature without a published run: the rows that have it}."""
    known = time_calibrations()
    gpu = f"GPU {candidates.base.hardware.name}"
    features = TIME_FEATURES if candidates.base.hardware.is_cpu else TIME_FEATURES | {gpu: lambda _: np.full((), True)}
    return {name: has(candidates) for name, has in features.items() if name not in known or not known[name].rows}


def spread(candidates: Candidates) -> Floats:
    """Returns the relative half width of the interval that contains nine of ten runs, [N] or []."""
    if candidates.base.hardware.is_cpu:
        return np.full((), MAX_SPREAD)
    known = time_calibrations()["all"]
    unknown = sum((flags.astype(float) for flags in never_timed(candidates).values()), np.zeros(()))
    longer = np.log2(np.maximum(1.0, candidates.number("seq_length") / known.longest))
    wider = np.log2(max(1.0, candidates.base.world_size / known.ranks))
    more = FEATURE_SPREAD * unknown + DOUBLING_SPREAD * (longer + wider)
    width: Floats = np.minimum(time_calibration(candidates).p90_pct / 100 + more, MAX_SPREAD)
    return width


def unproven_offloads(candidates: Candidates) -> dict[str, Flags]:
    """Returns {way of offloading to the host that no published run has: the rows that do it}."""
    known = time_calibrations()
    return {name: TIME_FEATURES[name](candidates) for name in OFFLOADS if not known[name].rows}


def ratio_spread(unproven: Integers) -> Floats:
    """Returns the relative half width of the 90 % interval of the ratio of two recipes' throughput, of which one has
    `unproven` more features that no published run has. Errors that both recipes have cancel."""
    width: Floats = np.hypot(PAIR_SPREAD, FEATURE_SPREAD * unproven)
    return width


def distance(candidates: Candidates) -> tuple[str, ...]:
    """Returns notes on features, sequence lengths and world sizes that no published run covers; empty if none."""
    if candidates.base.hardware.is_cpu:
        return ("CPU step times are not calibrated: a burst measures them in seconds",)
    known = time_calibrations()["all"]
    unpublished = [name for name, flags in never_timed(candidates).items() if flags.any()]
    found = [f"no published run has {', '.join(unpublished)}: the interval is wider for it"] if unpublished else []
    if float(candidates.number("seq_length").max()) > known.longest:
        found.append(f"sequences above {known.longest:,.0f} tokens were not published: the interval is wider for it")
    if candidates.base.world_size > known.ranks:
        found.append(f"no run on more than {known.ranks:,.0f} GPUs was published: the interval is wider for it")
    return tuple(found)
