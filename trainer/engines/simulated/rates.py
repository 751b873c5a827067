"""Rates of a recipe's GPUs on a machine: the time of one piece of work, in microseconds.

They are the figures of `rates.csv` and `hardware.csv` times the machine's factors. Values of rates.csv are fitted to
published runs by `benchmarks/simulation_accuracy.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import log, sqrt

from trainer.measured.architectures import known, of_architecture, of_precision
from trainer.measured.constants import Constant, read_constants
from trainer.measured.links import COLLECTIVE, shares
from trainer.measured.software import latest, releases
from trainer.model.layer import attention_channels
from trainer.recipe.hardware import UNFITTED, Hardware
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

Values = Mapping[str, float]

US = 1e6
GIGA, TERA = 1e9, 1e12
OLDER = ("25.09", "25.11")  # releases before the kernels and launches of 26.02
CPU_TFLOPS, CPU_TB_S, CPU_GB_S = 0.05, 0.02, 4.0  # rates of a rank with one thread, and of gloo
CPU_MORE_THREADS = 0.8  # share of a thread's rate that every further thread adds
SHORTEST_US = 2.5  # shortest time of any kernel
NCCL_SMS = 16.0
CPU_SMS = 132.0  # SMs of an H100, so that a collective takes as small a share of a CPU rank
# precisions with one scale per tensor, whose number of quantized copies depends on the GPU
PER_TENSOR = ("fp8_current", "fp8_delayed")
REGISTERED_SMS = 4.0  # SMs of a collective with registered user buffers (arXiv 2603.07685 section 4.1.7)


@cache
def rate_table() -> dict[str, Constant]:
    """Returns every rate by name; those with bounds are fitted."""
    return read_constants("rates.csv", package="trainer.engines.simulated")


@cache
def rate_values() -> Values:
    return {name: row.value for name, row in rate_table().items()}


class Rates:
    """The rates of one recipe on one machine. `release` is a row of software.csv."""

    def __init__(
        self, recipe: Recipe, machine: Machine, *, values: Values | None = None, release: str | None = None
    ) -> None:
        self.recipe, self.machine = recipe, machine
        self.values = values = values or rate_values()
        self.hardware: Hardware = recipe.hardware
        self.release = releases()[release or latest()]
        self.older = values["host.older"] if self.release.name in OLDER else 1.0
        self.precision: str = recipe.training.precision
        self.narrow = self.precision not in ("bf16", "fp16", "fp32")
        self.domain = max(self.hardware.nvlink_domain_gpus, recipe.cluster.gpus_per_node or self.hardware.gpus_per_node)
        self.sms = CPU_SMS if self.hardware.is_cpu else known(self.hardware, self.hardware.sms, "compute_units")
        compute = machine.compute
        self._wide = self._sustained("bf16") * compute.dense_gemm
        self._narrow = self._sustained(self.precision) * compute.dense_gemm
        self._half_rows = values["gemm.half_rows"]
        self._hbm = (
            CPU_TB_S if self.hardware.is_cpu else known(self.hardware, self.hardware.memory_tb_s, "hbm_tb_s")
        ) * TERA
        share = 0.8 if self.hardware.is_cpu else of_architecture(values, "memory", self.hardware)
        self._memory = self._hbm * share * compute.memory_bound / self.older

    @property
    def attainable_tflops(self) -> float:
        """Returns the peak rate of the recipe's precision, TFLOP/s; on a CPU the rate of its threads."""
        return self.recipe.peak_tflops or self._narrow / TERA

    @property
    def dense_tflops(self) -> float:
        """Returns the sustained rate of large GEMMs, TFLOP/s."""
        return self._narrow / TERA

    @property
    def attention_tflops(self) -> float:
        """Returns the rate of attention's forward pass over the recipe's sequences, TFLOP/s."""
        if self.hardware.is_cpu:
            return self._wide / TERA
        endless, share = self._attention("forward")
        return endless * share

    def _sustained(self, precision: str) -> float:
        """Returns the sustained FLOP/s of large GEMMs."""
        if self.hardware.is_cpu:
            threads = min(int(self.recipe.knob("threads_per_rank")), self.machine.host.cores_per_rank)
            return CPU_TFLOPS * TERA * (1 + CPU_MORE_THREADS * (threads - 1))
        reference = self.hardware.rated
        power = (self.hardware.watts or 1.0) / (reference.watts or 1.0)
        share = of_precision(self.values, "gemm", self.hardware, precision)
        return reference.peak_tflops(precision) * TERA * share * float(power ** self.values["power_exponent"])

    def gemm_us(self, rows: float, weights: float, *, wide: bool = False) -> float:
        """Returns the time of a dense GEMM of `rows` tokens with this many weights; `wide` stays in BF16."""
        if not rows or not weights:
            return 0.0
        rate = self._wide if wide else self._narrow
        full = 1.0 if self.hardware.is_cpu else rows / (rows + self._half_rows)
        return max(SHORTEST_US, US * 2.0 * rows * weights / (rate * full))

    def grouped_us(self, rows: float, experts: float, weights: float, width: float, *, grouped: bool) -> float:
        """Returns the time of a grouped GEMM: `rows` of all experts of a rank, `weights` and `width` of one expert."""
        machine, values = self.machine.compute, self.values
        rate = self._narrow * machine.grouped_gemm / machine.dense_gemm
        if not self.hardware.is_cpu:
            each = rows / experts
            rate *= each / (each + values["grouped.half_rows"] * machine.half_rows)
            rate *= width / (width + values["grouped.half_width"] * machine.half_width)
        rate *= 1.0 if grouped else values["grouped.apart"]
        return max(SHORTEST_US, US * 2.0 * rows * weights / rate) if rows else 0.0

    def attention_us(self, tokens: float, seen: float, *, tp: float, backward: bool) -> float:
        """Returns the time of fused attention for tokens that attend to `seen` positions each."""
        model = self.recipe.architecture
        query, _, value = attention_channels(model)
        width = query + (value if model.multi_latent_attention else query)
        flops = 2.0 * tokens * seen * width / tp * (2.5 if backward else 1.0)
        if self.hardware.is_cpu:
            return US * flops / self._wide
        endless, share = self._attention("backward" if backward else "forward")
        rate = endless * TERA * self.machine.compute.attention * share
        entries = tokens * seen * model.num_attention_heads / tp * (2.0 if backward else 1.0)
        exponentials = entries / (self.values["attention.exponentials"] * TERA * self.machine.compute.attention)
        faster = self.values["attention.fp8"] if self.recipe.knob("fp8_dot_product_attention") else 1.0
        return max(SHORTEST_US, US * max(flops / rate, exponentials) / faster)

    def _attention(self, way: str) -> tuple[float, float]:
        """Returns the rate of fused attention, `way` "forward" or "backward": TFLOP/s for an infinite sequence, and the
        share of it that the recipe's length reaches."""
        rate = of_architecture(self.values, "attention", self.hardware, way)
        if self.hardware.fitted_as == UNFITTED:  # the constant is a share of the peak
            rate *= self.hardware.peak_tflops("bf16")
        length = float(self.recipe.training.seq_length)
        return rate, length / (length + of_architecture(self.values, "attention", self.hardware, f"{way}_half"))

    def memory_us(self, entries: float, *, passes: float = 1.0) -> float:
        """Returns the time of a memory-bound kernel that reads and writes `entries` in BF16."""
        return max(SHORTEST_US, US * entries * 2.0 * passes / self._memory) if entries else 0.0

    def quantize_us(self, entries: float, *, experts: bool = False) -> float:
        """Returns the time to quantize inputs of GEMMs, `experts`: of grouped ones; 0 in other precisions than FP8 and
        FP4."""
        if not self.narrow or not entries or self.hardware.is_cpu:
            return 0.0
        values = self.values
        bytes_each = values[f"quantize.bytes.{self.precision}"]
        if self.precision in PER_TENSOR:
            bytes_each += self.hardware.fp8_copies or 1
        times = of_architecture(values, "quantize.experts", self.hardware) if experts else values["quantize.dense"]
        return US * entries * bytes_each * times * self.machine.compute.quantize / self._memory

    def optimizer_us(self, size_bytes: float) -> float:
        return US * size_bytes / (self._hbm * self.values["optimizer.rate"] * self.machine.compute.optimizer)

    def fabric(self, span: float) -> str:
        """Returns the kind of link between ranks within `span` neighbouring ranks."""
        return "nvlink" if span <= self.domain else "network"

    def latency_us(self, fabric: str) -> float:
        return self.values[f"link.latency_{fabric}"] * self.machine.links.latency

    def send_us(self, gb: float, fabric: str, library: str) -> float:
        """Returns the time to send `gb` from one rank over a link, without latency; small messages do not reach its
        rate."""
        if gb <= 0:
            return 0.0
        half_gb = self.values[f"link.half_{fabric}"] * self.machine.links.half_message * 1e-3
        return US * (gb + half_gb) / self._bandwidth_gb_s(fabric, library)

    def _bandwidth_gb_s(self, fabric: str, library: str) -> float:
        links = self.machine.links
        own = getattr(links, library, 1.0)
        if fabric == "nvlink":
            near = CPU_GB_S if self.hardware.is_cpu else known(self.hardware, self.hardware.nvlink_gb_s, "nvlink_gb_s")
            return near * shares()[library, self.hardware.nvlink_fabric] * links.nvlink * own
        far = (
            CPU_GB_S
            if self.hardware.is_cpu
            else known(self.hardware, self.hardware.scaleout_gbit_s, "network_gbit_s") / 8
        )
        return far * shares()[library, "network"] * links.network * own

    def ring_us(self, gb: float, ranks: float, *, stride: float = 1.0) -> float:
        """Returns the time of a ring of `ranks` ranks that are `stride` apart, in which each sends `gb` in total."""
        if ranks <= 1:
            return 0.0
        fabric = self.fabric(ranks * stride)
        hops = 1 + log(ranks) / log(8) if ranks > 8 else 1.0
        inside = 1.0
        # the ranks of a domain share its links to the network: each moves its own part of the ring
        if fabric == "network":
            inside = max(1.0, min(ranks, self.domain / stride))
        return self.latency_us(fabric) * hops + max(
            self.send_us(gb / inside, fabric, COLLECTIVE),
            self.send_us(gb, "nvlink", COLLECTIVE) if inside > 1 else 0.0,
        )

    def collective_sms(self) -> float:
        """Returns the share of the SMs that a ring occupies."""
        registered = self.recipe.knob("nccl_ub")
        return (REGISTERED_SMS if registered else NCCL_SMS) / self.sms

    @property
    def launch_us(self) -> float:
        """Returns the time of a launch with its Python, on the slowest of the ranks that wait for each other in every
        layer."""
        if self.hardware.is_cpu:
            return 20.0 * self.machine.host.launch
        recipe, values = self.recipe, self.values
        slow = values["host.grace"] if self.hardware.on_grace else 1.0
        unbound = values["host.unbound"] if recipe.knob("cpu_affinity") == "none" else 1.0
        peers = max(
            1.0,
            float(recipe.parallelism.expert_model_parallel_size),
            float(recipe.parallelism.tensor_model_parallel_size),
        )
        late = 1 + self.machine.host.jitter * sqrt(2 * log(peers)) if peers > 1 else 1.0
        return values["host.launch"] * slow * unbound * late * self.older * self.machine.host.launch

    @property
    def sync_us(self) -> float:
        """Returns the time from the end of the work that the host waited for to its next launch."""
        slow = self.values["host.grace"] if self.hardware.on_grace else 1.0
        return self.values["host.sync"] * slow * self.machine.host.launch + self.machine.host.sync_us

    def copy_us(self, gb: float) -> float:
        """Returns the time of a copy between host and device."""
        key = "link.c2c" if self.hardware.on_grace else "link.pcie"
        return US * gb / (self.values[key] * self.machine.links.pcie)
