"""The simulated cluster's figures: what decides how large each wall is.

Defaults are round numbers near what is published for 8-GPU nodes; a test plants a wall by changing one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.recipe import Recipe

# Share of a layer's forward work that each module runs again under selective recompute.
RECOMPUTED = {
    "core_attn": 0.08,
    "moe_act": 0.03,
    "layernorm": 0.03,
    "mla_up_proj": 0.06,
    "mlp": 0.12,
    "moe": 0.55,
    "shared_experts": 0.05,
}
# Time of a dispatch against the NCCL all-to-all: (inside the fast domain, across it). arXiv 2603.07685 table 7.
DISPATCHERS = {
    "alltoall": (1.0, 1.0),
    "allgather": (1.2, 2.5),
    "deepep": (0.9, 0.5),
    "hybridep": (0.8, 0.45),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Times in microseconds, rates in TFLOP/s and GB/s; fractions are 0..1."""

    gemm_efficiency: float = 0.6  # of the peak, with long GEMMs
    half_rows: float = 192.0  # rows an expert's GEMM needs for half of that on a GPU
    cpu_half_rows: float = 24.0  # and on a CPU
    cpu_tflops: float = 0.05  # a CPU rank with one thread
    cores_per_rank: int = 2
    launch_us: float = 5.0
    launches_per_layer: float = 70.0  # forward, eager, with grouped GEMM
    collective_us: float = 25.0  # latency of one collective
    fast_gb_s: float | None = None  # None: the hardware table's
    slow_gb_s: float | None = None
    hidden_ep: float = 0.7  # of EP communication, under EP overlap
    hidden_dp: float = 0.85  # of a direction of DP communication, under its overlap
    gc_us: float = 0.0  # pause a step without manual garbage collection
    host_adam_gb_s: float = 4.0  # optimizer state stepped on the host
    memory_scale: float = 1.05  # true peak over the closed form's
    memory_offset_gib: float = 0.0
    noise: float = 0.005  # relative standard deviation of a step
    burst_noise: float = 0.003  # of a burst's mean

    def tflops(self, recipe: Recipe) -> float:
        """Of one rank at its peak."""
        peak = recipe.peak_tflops
        if peak is not None:
            return peak
        threads = min(int(recipe.knob("threads_per_rank")), self.cores_per_rank)
        return self.cpu_tflops * (1.0 + 0.8 * (threads - 1))

    def bandwidth_gb_s(self, recipe: Recipe, ranks: int) -> float:
        """Of one rank in a collective over this many neighbouring ranks."""
        hardware = recipe.hardware
        if self.inside_domain(recipe, ranks):
            return self.fast_gb_s or hardware.nvlink_gb_s or 4.0
        return self.slow_gb_s or (hardware.scaleout_gbit_s or 16.0) / 8.0

    def inside_domain(self, recipe: Recipe, ranks: int) -> bool:
        hardware = recipe.hardware
        domain = recipe.cluster.gpus_per_node if hardware.is_cpu else hardware.nvlink_domain_gpus
        return ranks <= (domain or hardware.gpus_per_node)
