"""A GPU that a recipe describes by its figures instead of naming a row of `hardware.csv`.

Figures that estimates cannot do without are required, the rest is optional: if one is missing, estimates, rules and the
simulation report it (`Hardware.unknown`), widen their intervals or refuse, and use no other GPU's figure.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from trainer.recipe.architecture import Section
from trainer.recipe.hardware import PEAK_COLUMN, PEAK_FIELD, UNFITTED, Hardware, Precision, known_hardware

Rate = Annotated[float, Field(gt=0)]


class GpuFigures(Section):
    """Data-sheet figures of one GPU: dense peaks without sparsity, links one way."""

    name: str
    memory_gib: Rate  # total memory as the driver reports it
    bf16_tflops: Rate
    hbm_tb_s: Rate
    nvlink_gb_s: Rate  # rate to the other GPUs of its node, all links together: NVLink, Infinity Fabric, …
    network_gbit_s: Rate | None = None  # rate per GPU between nodes
    host_link_gb_s: Rate | None = None  # rate to the memory of its host: PCIe, NVLink-C2C
    fp8_tflops: Rate | None = None
    fp4_tflops: Rate | None = None
    vendor: str | None = Field(default=None, min_length=1)  # "nvidia", "amd", …
    compute_units: int | None = Field(default=None, gt=0)  # streaming multiprocessors
    nvlink_domain_gpus: int | None = Field(default=None, gt=0)  # None: those of a node
    compute_capability: Rate | None = None  # as torch reports it
    # precisions in which its units compute
    precisions: Annotated[tuple[Precision, ...], Field(strict=False)] | None = None
    # copies of a weight with one scale per tensor: 2 if GEMMs need its transpose
    fp8_copies: Literal[1, 2] | None = None
    flex_backends: Annotated[tuple[Literal["deepep", "hybridep", "ncclep"], ...], Field(strict=False)] | None = None
    host_cpu: Literal["x86", "grace"] | None = None

    @field_validator("name")
    @classmethod
    def _free_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name):
            raise PydanticCustomError("gpu_name", "{name} is no name of a GPU", {"name": repr(name)})
        row = known_hardware().get(name.lower())
        if row and row.fitted_as != UNFITTED:  # estimates and their intervals have constants for these names
            message = "{name} is a GPU of the table, which has its figures"
            raise PydanticCustomError("gpu_of_the_table", message, {"name": name})
        return name


def hardware_of(gpu: str | GpuFigures, gpus_per_node: int | None, network_gbit_s: float | None) -> Hardware:
    """Returns the device of a cluster, from the table or from given figures, with the cluster's own network."""
    if isinstance(gpu, str) and network_gbit_s is None:
        return known_hardware()[gpu]
    return _composed(gpu, gpus_per_node, network_gbit_s)


@lru_cache(maxsize=64)
def _composed(gpu: str | GpuFigures, gpus_per_node: int | None, network_gbit_s: float | None) -> Hardware:
    found = known_hardware()[gpu] if isinstance(gpu, str) else _from_figures(gpu, gpus_per_node or 1)
    return found if network_gbit_s is None else replace(found, scaleout_gbit_s=network_gbit_s)


def _from_figures(gpu: GpuFigures, gpus_per_node: int) -> Hardware:
    peaks = {precision: getattr(gpu, PEAK_FIELD[column]) for precision, column in PEAK_COLUMN.items()}
    return Hardware(
        name=gpu.name,
        architecture=UNFITTED,
        vendor=gpu.vendor and gpu.vendor.lower(),
        fitted_as=UNFITTED,
        memory_gib=gpu.memory_gib,
        dense_tflops={precision: peak for precision, peak in peaks.items() if peak is not None},
        memory_tb_s=gpu.hbm_tb_s,
        nvlink_gb_s=gpu.nvlink_gb_s,
        nvlink_domain_gpus=gpu.nvlink_domain_gpus or gpus_per_node,
        gpus_per_node=gpus_per_node,
        scaleout_gbit_s=gpu.network_gbit_s,
        host_link_gb_s=gpu.host_link_gb_s,
        sms=gpu.compute_units,
        watts=None,
        compute_capability=gpu.compute_capability,
        precisions=gpu.precisions,
        fp8_copies=gpu.fp8_copies,
        flex_backends=gpu.flex_backends,
        host_cpu=gpu.host_cpu,
    )
