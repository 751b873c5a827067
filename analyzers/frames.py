"""Tables of an analysis for notebooks: pandas DataFrames with units in the column names.

`Analysis.steps`, `.kernels` and `.ranks` return them; pandas is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analyzers.kernel_classes import COMPUTE_CLASSES, KINDS
from analyzers.wording import ACTIVITY_NAMES

if TYPE_CHECKING:
    from pandas import DataFrame

STEP_TIMES = (
    "start_us",
    "duration_us",
    "busy_us",
    "compute_us",
    "recompute_us",
    "communication_us",
    "exposed_communication_us",
    "copy_us",
    "exposed_copy_us",
    "graph_us",
    "idle_us",
)
PLACE = ("path", "rank", "device")
IDLE_CAUSES = ("host_us", "bubble_us", "sync_us", "unattributed_us")
# columns of every table, even an empty one
STEP_COLUMNS = (
    *(*PLACE, "step", "warm_up", "judged", "wall", *STEP_TIMES),
    *(f"idle_{cause}" for cause in IDLE_CAUSES),
    *(f"exposed_{kind}_us" for kind in KINDS),
    *(f"waiting_{kind}_us" for kind in KINDS),
    *(f"compute_{name}_us" for name in COMPUTE_CLASSES),
    *(f"host_{name}_us" for name in ACTIVITY_NAMES),
)
KERNEL_COLUMNS = (*PLACE, "kernel", "compute_class", "kind", "precision", "count", "total_us", "mean_us", "share")
RANK_COLUMNS = (
    *("rank", "device", "clock_offset_us", "step_us", "own_us", "waiting_us"),
    *(f"waiting_{kind}_us" for kind in KINDS),
    *("expert_compute_us", "late_us", "late_to", "late_in"),
)
WHOLE_NUMBERS = ("rank", "device")  # may be missing


def steps_frame(traces: Sequence[Any], judged: Sequence[Any]) -> DataFrame:
    """Returns a row for each step of each trace (`TraceReport`); for its whole span if no step is marked.

    judged: the steps (`JudgedStep`) that the verdict averages.
    """
    averaged = {(one.trace, one.step) for one in judged}
    return _frame(
        (
            {
                **_place(trace),
                "step": step.name,
                "warm_up": step.name in trace.warm_up,
                "judged": (place, step.name) in averaged,
                "wall": None if step.wall is None else step.wall.value,
                **{name: getattr(step, name) for name in STEP_TIMES},
                **{f"idle_{name}": getattr(step.idle_by_cause, name) for name in IDLE_CAUSES},
                **_named("exposed", {kind: time.exposed_us for kind, time in step.communication_by_kind.items()}),
                **_named("waiting", step.waiting_by_kind),
                **_named("compute", step.compute_by_class),
                **_named("host", step.host_by_activity),
            }
            for place, trace in enumerate(traces)
            for step in trace.steps or [trace.span]
        ),
        STEP_COLUMNS,
    )


def kernels_frame(traces: Sequence[Any]) -> DataFrame:
    """Returns a row for each kernel of each trace that is among the longest of its class; `share` is its share of the
    time of these kernels."""
    return _frame(
        (
            {
                **_place(trace),
                "kernel": kernel.name,
                "compute_class": kernel.compute_class,
                "kind": kernel.kind,
                "precision": kernel.precision,
                "count": kernel.count,
                "total_us": kernel.total_us,
                "mean_us": kernel.total_us / max(kernel.count, 1),
                "share": kernel.total_us / (sum(one.total_us for one in trace.kernels) or 1.0),
            }
            for trace in traces
            for kernel in trace.kernels
        ),
        KERNEL_COLUMNS,
    )


def ranks_frame(ranks: Sequence[Any]) -> DataFrame:
    """Returns a row for each rank (`RankTime`) of a job with several traced ranks."""
    return _frame(
        (
            {
                "rank": rank.rank,
                "device": rank.device,
                "clock_offset_us": rank.clock_offset_us,
                "step_us": rank.step_us,
                "own_us": rank.own_us,
                "waiting_us": rank.waiting_us,
                **_named("waiting", rank.waiting_by_kind),
                "expert_compute_us": rank.expert_compute_us,
                "late_us": rank.late_us,
                "late_to": rank.late_to,
                "late_in": rank.late_in,
            }
            for rank in ranks
        ),
        RANK_COLUMNS,
    )


def _frame(rows: Iterator[dict[str, Any]], columns: Sequence[str]) -> DataFrame:
    """Returns a table of rows with these columns. Missing times are 0, other missing values NA."""
    from pandas import DataFrame

    table = [{name: row.get(name, 0.0 if name.endswith("_us") else None) for name in columns} for row in rows]
    return DataFrame(table, columns=list(columns)).astype(dict.fromkeys(WHOLE_NUMBERS, "Int64"))


def _place(trace: Any) -> dict[str, Any]:
    return {"path": trace.path, "rank": trace.rank, "device": trace.devices[0] if trace.devices else None}


def _named(before: str, times: Mapping[str, float]) -> dict[str, float]:
    return {f"{before}_{name}_us": us for name, us in times.items()}
