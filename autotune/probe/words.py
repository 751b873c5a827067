"""Writes the words and figures of a probe's rows, for terminals and reports."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.looks.quantities import NONE, duration, gib, percent, significant
from autotune.probe.document import Consequence, ProbedRow

TITLES = {
    "compute": "Device work of a layer, forward and backward",
    "host": "Host",
    "links": "Links",
    "overlap": "Overlap of communication and compute",
    "memory": "Memory",
    "works": "Software",
}
FALLS_BACK = {  # kind of row → consequence of missing software
    "transformer_engine": "Megatron-Core's own layers: slower, and no FP8",
    "grouped_gemm": "one GEMM per expert",
    "fp8": "BF16 only",
    "graphs": "no CUDA graphs",
    "profiler": "bursts without traces: no walls",
    "nvml": "power and clocks are not recorded",
    "nsys": "torch profiler only",
    "deepep": "NCCL all-to-all instead",
    "hybridep": "NCCL all-to-all instead",
    "ncclep": "NCCL all-to-all instead",
    "megatron": "no bursts of engine megatron",
}


def cells(row: ProbedRow) -> tuple[str, str, str, str]:
    """Returns a row's name, its measured and expected figure, and its consequence."""
    if row.unit == "works":
        return row.name, "yes" if row.measured else "no", "", consequence(row)
    return row.name, quantity(row.measured, row.unit), quantity(row.expected, row.unit), consequence(row)


def quantity(value: float | None, unit: str) -> str:
    """Returns a figure with its unit."""
    if value is None:
        return NONE
    if unit == "us":
        return duration(value)
    return gib(value) if unit == "GiB" else percent(value) if unit == "share" else significant(value, 3)


def consequence(row: ProbedRow) -> str:
    """Returns the consequence of a row in words; "" if its figure is compared with nothing."""
    match row.consequence:
        case Consequence.NOT_MEASURED:
            return "not measured"
        case Consequence.MISSING:
            return FALLS_BACK.get(row.kind, "")
        case Consequence.MEASURED | Consequence.WORKS:
            return ""
        case Consequence.AS_EXPECTED:
            return "as expected"
        case _:
            return f"{_times(row)} {row.consequence.value}"


def _times(row: ProbedRow) -> str:
    ratio = row.ratio or 1.0
    return f"{significant(max(ratio, 1 / ratio), 3)} times"


def notes(rows: Sequence[ProbedRow]) -> list[str]:
    """Returns notes on the figures: why rows have none, slow ranks, repeats that differ."""
    lines = [f"{row.name}: {row.failure}" for row in rows if row.failure is not None]
    if slow := [row for row in rows if row.slow_rank is not None]:
        ranks = ", ".join(str(rank) for rank in sorted({row.slow_rank or 0 for row in slow}))
        worst = max(slow, key=lambda row: row.slow_by or 0.0)
        by = significant(worst.slow_by or 1.0, 3)
        lines.append(f"slower than the median of the ranks: {ranks}; most in {worst.name} ({by} times)")
    unsteady = [row for row in rows if row.unsteady]
    if unsteady:
        worst = max(unsteady, key=lambda row: (row.high or 0.0) / (row.low or 1.0))
        span = f"{quantity(worst.low, worst.unit)} to {quantity(worst.high, worst.unit)}"
        measured = sum(row.measured is not None and row.unit != "works" for row in rows)
        lines.append(
            f"repeats differ by a quarter or more in {len(unsteady)} of {measured} rows, most in {worst.name} "
            f"({span}): is something else running there?"
        )
    return lines
