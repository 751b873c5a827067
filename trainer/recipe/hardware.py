"""The GPUs a recipe may name, and the CPU: one row of `hardware.csv` each, with the sources of its figures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from trainer.recipe.tables import read_table

Precision = Literal["fp32", "bf16", "fp16", "fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8", "nvfp4"]

# Which column holds the dense peak of a precision; fp32 has none (a CPU measures its own rate, no GPU trains in it).
PEAK_COLUMN: dict[Precision, str] = {
    "bf16": "bf16_dense_tflops",
    "fp16": "bf16_dense_tflops",  # the same units
    "fp8_blockwise": "fp8_dense_tflops",
    "fp8_current": "fp8_dense_tflops",
    "fp8_delayed": "fp8_dense_tflops",
    "mxfp8": "fp8_dense_tflops",
    "nvfp4": "fp4_dense_tflops",
}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device. Rates are datasheet peaks, one way where the name does not say otherwise."""

    name: str  # as a recipe writes it: "h100"
    architecture: str  # "hopper", "blackwell" or "cpu"
    memory_gib: float | None  # in all, as the driver tells programs; None: whatever the recipe says, else not limited
    dense_tflops: dict[str, float]  # by precision; a missing one cannot run here or is not known
    memory_tb_s: float | None
    nvlink_gb_s: float | None  # one way, per GPU
    nvlink_domain_gpus: int
    gpus_per_node: int
    scaleout_gbit_s: float | None  # per GPU
    sms: int | None
    watts: float | None  # thermal design power: what long products sustain goes with it

    @property
    def is_cpu(self) -> bool:
        return self.architecture == "cpu"


def _number(text: str) -> float | None:
    """The first number of a cell: "200 nominal / ~160 effective" is 200."""
    match = re.match(r"\s*([\d.]+)", text)
    return float(match.group(1)) if match else None


def _count(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _hardware(row: dict[str, str]) -> Hardware:
    peaks = {precision: _number(row[column]) for precision, column in PEAK_COLUMN.items()}
    return Hardware(
        name=row["gpu"].split()[0].lower(),
        architecture=row["architecture"],
        memory_gib=_number(row["memory_gib"]),
        dense_tflops={precision: peak for precision, peak in peaks.items() if peak is not None},
        memory_tb_s=_number(row["hbm_tb_s"]),
        nvlink_gb_s=_number(row["nvlink_unidir_gb_s_per_gpu"]),
        nvlink_domain_gpus=_count(row["nvlink_domain_gpus"]) or 1,
        gpus_per_node=_count(row["gpus_per_node"]) or 1,
        scaleout_gbit_s=_number(row["scaleout_gbit_s_per_gpu"]),
        sms=_count(row["sms"]),
        watts=_number(row["tdp_w"]),
    )


@cache
def known_hardware() -> dict[str, Hardware]:
    """Every row by the name a recipe writes."""
    rows = [_hardware(row) for row in read_table("hardware.csv")]
    return {row.name: row for row in rows}
