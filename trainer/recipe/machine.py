"""A machine file: every key, unit and default.

It describes how a simulated cluster differs from the tables and the published runs. Factors multiply the values of
`rates.csv` of the simulated engine and of `hardware.csv`; 1 is "as published". Absent keys have their defaults, so a
file holds only what is special about its cluster. `load_machine.py` reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.recipe.architecture import Section

Factor = Annotated[float, Field(ge=0.001, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]


class Compute(Section):
    """Factors on the figures of rates.csv: 0.8 on a rate is 20 % slower."""

    dense_gemm: Factor = Field(1.0, description="rate of dense GEMMs")
    grouped_gemm: Factor = Field(1.0, description="rate of the experts' grouped GEMMs")
    half_rows: Factor = Field(1.0, description="rows an expert needs for half of the grouped rate")
    half_width: Factor = Field(1.0, description="width an expert needs for half of the grouped rate")
    attention: Factor = Field(1.0, description="rate of fused attention")
    memory_bound: Factor = Field(1.0, description="HBM rate that memory-bound kernels reach")
    quantize: Factor = Field(1.0, description="time of quantization in FP8 and FP4")
    optimizer: Factor = Field(1.0, description="rate of the optimizer step")


class Links(Section):
    """Factors on the measured bandwidths and latencies of links."""

    nvlink: Factor = Field(1.0, description="bandwidth inside the NVLink domain")
    network: Factor = Field(1.0, description="bandwidth between domains")
    pcie: Factor = Field(1.0, description="bandwidth between host and device")
    latency: Factor = Field(1.0, description="latency of a collective")
    half_message: Factor = Field(1.0, description="message size that reaches half of the bandwidth")
    alltoall: Factor = Field(1.0, description="bandwidth of the NCCL all-to-all dispatcher")
    allgather: Factor = Field(1.0, description="bandwidth of the all-gather dispatcher")
    deepep: Factor = Field(1.0, description="bandwidth of DeepEP")
    hybridep: Factor = Field(1.0, description="bandwidth of HybridEP")


class Overlap(Section):
    """Interference between concurrent CUDA streams."""

    sm_contention: Factor = Field(
        1.0, description="compute lost to concurrent communication, relative to the share of SMs it occupies"
    )
    ep: Share = Field(1.0, description="share of EP communication that can overlap with compute, with EP overlap")
    dp: Share = Field(1.0, description="share of DP communication that can overlap with compute, with its overlaps")
    slowed: Factor = Field(1.0, description="time of communication concurrent with compute, relative to rates.csv")


class Host(Section):
    """Figures of the CPU that launches kernels."""

    launch: Factor = Field(1.0, description="time of a launch, Python around it included")
    sync_us: float = Field(0.0, ge=0, description="additional µs per synchronisation of host and device")
    step_ms: float = Field(0.0, ge=0, description="additional ms of host work per step: data, logging")
    gc_ms: float = Field(0.0, ge=0, description="ms per garbage collection")
    gc_every_steps: float = Field(1.0, gt=0, description="steps between two collections without manual_gc")
    cores_per_rank: int = Field(2, gt=0, description="cores of a CPU rank; more threads than these help nothing")
    jitter: Share = Field(0.02, description="relative standard deviation of a rank's host time from layer to layer")


class Routing(Section):
    """Imbalance of the experts' load if nothing forces balance."""

    skew: float = Field(0.25, ge=0, le=20, description="relative standard deviation of an expert's load over the mean")
    drift: Share = Field(0.1, description="share of the skew that is redrawn every step")


class Memory(Section):
    """Memory of a GPU that the recipe does not account for."""

    activations: Factor = Field(1.0, description="factor on the counted activations")
    fragmentation: Share = Field(0.03, description="share of the allocator's memory that cannot be used")
    outside_gib: float = Field(0.0, ge=0, description="additional GiB outside the allocator: context, NCCL, NVSHMEM")
    second_step_gib: float = Field(0.0, ge=0, description="GiB that appear in the second step")


class Noise(Section):
    """Noise of measurements."""

    step: Share = Field(0.004, description="relative standard deviation of a step around its burst's mean")
    burst: Share = Field(0.003, description="relative standard deviation of a burst's mean around the noise-free value")


class Straggler(Section):
    """Slowdown of some ranks: of one rank, or of every rank of a node."""

    rank: int | None = Field(None, ge=0, description="the slow rank; without it, those of `node`")
    node: int | None = Field(None, ge=0, description="the node whose ranks are slow, if `rank` is not given")
    compute: Factor = Field(1.0, description="factor on the time of its compute")
    host: Factor = Field(1.0, description="factor on the time of its host's work")
    network: Factor = Field(1.0, description="factor on the time of its links to other domains")


class Fault(Section):
    """Failure injected at one rank and step, in bursts chosen by chance."""

    kind: Literal["dies", "hangs", "nan", "node_lost"] = Field(description="kind of the failure")
    rank: int = Field(0, ge=0, description="rank that fails; for node_lost, any rank of the node")
    step: int = Field(0, ge=0, description="step in which it fails, counted from 0, warm-up included")
    chance: Share = Field(1.0, description="probability that the failure happens in a burst")
    bursts: int | None = Field(
        None, gt=0, description="number of first bursts of a study in which it can happen; by default all"
    )


class Startup(Section):
    """Durations of a burst's start, with the time that its first step takes longer than others."""

    launch_s: float = Field(45.0, ge=0, description="s to start ranks and import")
    per_1024_ranks_s: float = Field(20.0, ge=0, description="additional s per 1,024 ranks: process groups")
    build_s_per_gib: float = Field(0.15, ge=0, description="s to build a GiB of model and optimizer state")
    first_step_s: float = Field(8.0, ge=0, description="s that the first step takes longer: compilation, tuning")


class Machine(Section):
    name: str = Field("machine", description="name in reports")
    about: str = Field("", description="one sentence on what is special about it")
    compute: Compute = Compute()
    links: Links = Links()
    overlap: Overlap = Overlap()
    host: Host = Host()
    routing: Routing = Routing()
    memory: Memory = Memory()
    noise: Noise = Noise()
    startup: Startup = Startup()
    stragglers: Annotated[tuple[Straggler, ...], Field(strict=False)] = Field((), description="ranks that are slower")
    faults: Annotated[tuple[Fault, ...], Field(strict=False)] = Field((), description="failures that may happen")
