"""Devices that a recipe may train on: rows of `hardware.csv`, the CPU among them, and GPUs given by figures.

All that differs between architectures (number formats, dispatch libraries, the copies that FP8 weights keep, the fitted
constants of estimates) is a column, so that a new GPU is a row. An empty cell is an unknown figure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from trainer.errors import refused
from trainer.recipe.tables import read_table

Precision = Literal["fp32", "bf16", "fp16", "fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8", "nvfp4"]

# precision -> column with its dense peak; fp32 has none (a CPU measures its own rate, no GPU trains in it)
PEAK_COLUMN: dict[Precision, str] = {
    "bf16": "bf16_dense_tflops",
    "fp16": "bf16_dense_tflops",  # FP16 runs on the same units as BF16
    "fp8_blockwise": "fp8_dense_tflops",
    "fp8_current": "fp8_dense_tflops",
    "fp8_delayed": "fp8_dense_tflops",
    "mxfp8": "fp8_dense_tflops",
    "nvfp4": "fp4_dense_tflops",
}
PEAK_FIELD = {"bf16_dense_tflops": "bf16_tflops", "fp8_dense_tflops": "fp8_tflops", "fp4_dense_tflops": "fp4_tflops"}
UNFITTED = "unfitted"  # constants of an architecture that no published run was measured on


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device.

    Rates are datasheet peaks, one way unless the name says otherwise; None is an unknown figure.
    """

    name: str  # name in recipes: "h100"
    architecture: str  # "hopper", "blackwell", "cpu", …
    vendor: str | None  # "nvidia", "amd", …
    fitted_as: str  # the architecture in the names of fitted constants, or UNFITTED
    memory_gib: float | None  # total memory as the driver reports it; None: as the recipe says, else not limited
    dense_tflops: dict[str, float]  # by precision; a missing one cannot run on the device or is not known
    memory_tb_s: float | None
    nvlink_gb_s: float | None  # rate one way, per GPU, to the other GPUs of its node or rack
    nvlink_domain_gpus: int
    gpus_per_node: int
    scaleout_gbit_s: float | None  # per GPU
    host_link_gb_s: float | None  # rate one way, per GPU, to the memory of its host
    sms: int | None  # streaming multiprocessors, or compute units of other vendors
    watts: float | None  # thermal design power, which limits the sustained rate of long GEMMs
    reference: Hardware | None = None  # device whose peak and power the fitted shares refer to; None: this one
    compute_capability: float | None = None  # as torch reports it
    precisions: tuple[str, ...] | None = None  # precisions in which its units compute
    emulated_precisions: tuple[str, ...] = ()
    plan_precisions: tuple[str, ...] = ()  # precisions narrower than BF16 that plans and fixes try, in this order
    fp8_copies: int | None = None  # copies of a weight with one scale per tensor: 2 if GEMMs need its transpose
    flex_backends: tuple[str, ...] | None = None  # supported backends of the flex dispatcher
    host_cpu: str | None = None  # "x86" or "grace"

    @property
    def is_cpu(self) -> bool:
        return self.architecture == "cpu"

    @property
    def is_rack_scale(self) -> bool:
        """Returns true if NVLink joins the GPUs of several nodes."""
        return self.nvlink_domain_gpus > self.gpus_per_node

    @property
    def nvlink_fabric(self) -> str:
        """Returns the fabric of links.csv for its NVLink domain."""
        return "nvlink72" if self.nvlink_domain_gpus > 8 else "nvlink8"

    @property
    def on_grace(self) -> bool:
        return self.host_cpu == "grace"

    @property
    def needs_one_connection(self) -> bool:
        """Returns true if Megatron-LM requires CUDA_DEVICE_MAX_CONNECTIONS=1 for TP and CP: compute capabilities below
        10."""
        return self.compute_capability is not None and self.compute_capability < 10

    @property
    def rated(self) -> Hardware:
        """Returns the device whose peak and power the fitted efficiencies refer to."""
        return self.reference or self

    def runs(self, precision: str) -> bool | None:
        """Returns whether the device computes in a precision, natively or emulated; None if unknown."""
        if precision == "fp32" or self.is_cpu:
            return True
        return None if self.precisions is None else precision in (*self.precisions, *self.emulated_precisions)

    def peak_tflops(self, precision: str) -> float:
        """Returns the dense peak of a precision, TFLOP/s; BF16's if the precision has no units of its own or no known
        figure."""
        return self.dense_tflops.get(precision) or self.dense_tflops["bf16"]

    def unknown(self, precision: Precision) -> tuple[str, ...]:
        """Returns the unknown figures that an estimate in this precision would use, named as in a recipe's `gpu`."""
        if self.is_cpu:
            return ()
        computed: Precision = "bf16" if precision == "fp32" else precision
        wanted: dict[str, object] = {
            PEAK_FIELD[PEAK_COLUMN[computed]]: self.dense_tflops.get(computed),
            "host_cpu": self.host_cpu,
        }
        if precision in ("fp8_current", "fp8_delayed"):
            wanted["fp8_copies"] = self.fp8_copies
        if precision == "mxfp8":
            wanted["precisions"] = self.precisions
        return tuple(name for name, known in wanted.items() if known is None)


def _number(text: str) -> float | None:
    """Returns the first number of a cell: 200 for "200 nominal / ~160 effective"."""
    match = re.match(r"\s*([\d.]+)", text)
    return float(match.group(1)) if match else None


def _count(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _words(text: str) -> tuple[str, ...] | None:
    return tuple(text.split()) or None


def _hardware(row: dict[str, str], reference: Hardware | None) -> Hardware:
    peaks = {precision: _number(row[column]) for precision, column in PEAK_COLUMN.items()}
    return Hardware(
        name=_name(row),
        architecture=row["architecture"],
        vendor=row["vendor"] or None,
        fitted_as=row["fitted_as"],
        memory_gib=_number(row["memory_gib"]),
        dense_tflops={precision: peak for precision, peak in peaks.items() if peak is not None},
        memory_tb_s=_number(row["hbm_tb_s"]),
        nvlink_gb_s=_number(row["nvlink_unidir_gb_s_per_gpu"]),
        nvlink_domain_gpus=_count(row["nvlink_domain_gpus"]) or 1,
        gpus_per_node=_count(row["gpus_per_node"]) or 1,
        scaleout_gbit_s=_number(row["scaleout_gbit_s_per_gpu"]),
        host_link_gb_s=_number(row["host_link_gb_s"]),
        sms=_count(row["sms"]),
        watts=_number(row["tdp_w"]),
        reference=reference,
        compute_capability=_number(row["compute_capability"]),
        precisions=_words(row["precisions"]),
        emulated_precisions=_words(row["emulated_precisions"]) or (),
        plan_precisions=_words(row["plan_precisions"]) or (),
        fp8_copies=_count(row["fp8_copies"]),
        flex_backends=_words(row["flex_backends"]),
        host_cpu=row["host_cpu"] or None,
    )


def _name(row: dict[str, str]) -> str:
    return row["gpu"].split()[0].lower()


# Cells that estimates need for a GPU
NEEDED = (
    "fitted_as",
    "bf16_dense_tflops",
    "memory_gib",
    "hbm_tb_s",
    "nvlink_unidir_gb_s_per_gpu",
    "nvlink_domain_gpus",
    "gpus_per_node",
    "scaleout_gbit_s_per_gpu",
    "sms",
)


def _refuse_gaps(row: dict[str, str], rows: dict[str, dict[str, str]]) -> None:
    where = f"hardware.csv {_name(row)}"
    lacking = [column for column in NEEDED if not row[column]]
    if lacking and row["architecture"] != "cpu":
        raise refused(where, f"no figure in {', '.join(lacking)}", "write it, with its source")
    reference = row["reference"]
    if reference and reference not in rows:
        raise refused(where, f"reference {reference!r} is no row", f"name one of {', '.join(rows)}, or leave it empty")
    if reference and not (row["tdp_w"] and rows[reference]["tdp_w"]):
        raise refused(where, f"shares of {reference} go with the power, and tdp_w is empty", "write tdp_w of both")


@cache
def known_hardware() -> dict[str, Hardware]:
    """Returns every row by its name in recipes. Raises BadInputError for a row without a figure that estimates need."""
    rows = {_name(row): row for row in read_table("hardware.csv")}
    for row in rows.values():
        _refuse_gaps(row, rows)
    alone = {name: _hardware(row, None) for name, row in rows.items()}
    return {
        name: _hardware(row, alone[row["reference"]] if row["reference"] not in ("", name) else None)
        for name, row in rows.items()
    }
