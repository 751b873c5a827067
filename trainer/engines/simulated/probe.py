"""Simulates a probe: every row is computed from the simulation's own rates, with its noise and cost.

A kind of row is one function of KINDS: the measurement of one rank without stragglers, in the row's unit. Stragglers
among the probed ranks are slower, as in bursts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from trainer.engines.simulated.layer import Layers
from trainer.engines.simulated.memory.outside import outside_gib
from trainer.engines.simulated.memory.simulate import layer_kept_gib, layer_peak_gib, lost_to_fragmentation
from trainer.engines.simulated.memory.sizes import Sizes
from trainer.engines.simulated.ops import Concurrent, Op, Segment, Stream
from trainer.engines.simulated.parts import Kind
from trainer.engines.simulated.passes import Passes
from trainer.engines.simulated.rates import Rates
from trainer.engines.simulated.streams import Pace, simulate
from trainer.microbenchmarks.group import GROUP_S, PROBE_S
from trainer.microbenchmarks.row import Row, failed, measured
from trainer.microbenchmarks.shapes import probed_nodes
from trainer.recipe.machine import Machine, Straggler
from trainer.recipe.schema import Recipe

REPEATS = 5
ROW_S = 0.3  # least seconds of a row: its repeats and their preparation
SHORT_US, LONG_US = 1e3, 1e5  # durations of the measured work and of the longer work concurrent with it
PROFILED = 1.8  # time of a launch under the profiler relative to one without it
ADAM_BYTES = 2 * 12.0 + 4.0 + 2.0  # bytes per parameter: master weight and moments read and written, gradient, weight
CLASSES = {  # classes of a layer's kernels, as traces count them
    "gemm": ("gemm",),
    "grouped": ("grouped_gemm",),
    "attention": ("attention_forward", "attention_backward"),
    "memory_bound": ("norm", "norm_backward", "rope", "residual", "activation", "activation_backward"),
    "permute": ("router", "preprocess", "permute"),
    "quantize": ("quantize",),
}
WORKS = {"fp8": ("fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8")}


@dataclass(frozen=True, kw_only=True)
class SimulatedProbe:
    """The rows with their measurements, on `ranks` ranks in `seconds`, start-up included."""

    rows: list[Row]
    ranks: int
    seconds: float


def simulate_probe(recipe: Recipe, rows: Sequence[Row], *, seed: int, within_s: float = PROBE_S) -> SimulatedProbe:
    """Simulates the rows in order.

    A group ends after GROUP_S, the probe after `within_s`, start-up included; the remaining rows get no figure, and the
    reason.
    """
    machine = recipe.burst.machine or Machine()
    nodes = probed_nodes(recipe)
    ranks = nodes * recipe.ranks_per_node
    startup_s = machine.startup.launch_s + machine.startup.per_1024_ranks_s * ranks / 1024
    rng = random.Random(f"probe {recipe.digest()} {seed}")
    level = {group: math.exp(rng.gauss(0.0, machine.noise.burst)) for group in dict.fromkeys(r.group for r in rows)}
    spent, total, found = dict.fromkeys(level, 0.0), startup_s, list[Row]()
    for row in rows:
        if spent[row.group] >= GROUP_S or total >= within_s:
            found.append(failed(row, "no time was left"))
            continue
        one = _simulated_row(recipe, machine, row, ranks=ranks, level=level[row.group], rng=rng)
        found.append(one)
        took = ROW_S + 2 * REPEATS * (one.measured or 0.0) * 1e-6 * (row.unit == "us")
        spent[row.group], total = spent[row.group] + took, total + took
    return SimulatedProbe(rows=found, ranks=ranks, seconds=round(min(total, within_s), 3))


def _simulated_row(recipe: Recipe, machine: Machine, row: Row, *, ranks: int, level: float, rng: random.Random) -> Row:
    value = KINDS[row.kind](_Alone(row.recipe(recipe), machine, row))
    if value is None:
        return failed(row, "it is not here")
    if row.unit == "works":
        return measured(row, {0: [value]}, slow=None)
    slower = {rank: _slower(late, row.group) for late in machine.stragglers for rank in _ranks_of(late, recipe, ranks)}
    noise = machine.noise.step if row.unit in ("us", "ratio") else 0.0
    wobble = level if row.unit in ("us", "ratio") else 1.0
    repeats = {
        rank: [value * wobble * slower.get(rank, 1.0) * math.exp(rng.gauss(0.0, noise)) for _ in range(REPEATS)]
        for rank in range(ranks)
    }
    return measured(row, repeats)


def _slower(late: Straggler, group: str) -> float:
    return {"compute": late.compute, "host": late.host, "links": late.network}.get(group, 1.0)


def _ranks_of(late: Straggler, recipe: Recipe, ranks: int) -> Iterable[int]:
    each = recipe.ranks_per_node
    found = [late.rank] if late.rank is not None else range((late.node or 0) * each, ((late.node or 0) + 1) * each)
    return (rank for rank in found if rank < ranks)


class _Alone:
    """One rank's layer of a row's recipe, at an even load."""

    def __init__(self, recipe: Recipe, machine: Machine, row: Row) -> None:
        self.recipe, self.machine, self.row = recipe, machine, row
        self.rates = Rates(recipe, machine)

    @cached_property
    def layers(self) -> Layers:
        return Layers(self.recipe, self.rates)

    @cached_property
    def kind(self) -> Kind:
        """Returns the kind of the first layer with experts, or without if the row asks for it; else of the first."""
        kinds = self.recipe.architecture.layer_kinds
        wanted = "moe" if self.row.sizes.get("moe", 1.0) else "dense"
        found = next((kind for kind in kinds if kind.feed == wanted), kinds[0])
        return Kind(found.mixer, found.feed)

    @cached_property
    def ops(self) -> list[Op]:
        """Returns the kernels of the layer, forward and backward."""
        ways = (self.layers.forward(self.kind, 1.0), self.layers.backward(self.kind, 1.0))
        return [op for way in ways for op in _flat(way.all)]


def _flat(segment: Segment) -> Iterable[Op]:
    for item in segment:
        if isinstance(item, Concurrent):
            yield from _flat(item.first)
            yield from _flat(item.second)
        else:
            yield item


def _class(name: str) -> Callable[[_Alone], float | None]:
    def us(alone: _Alone) -> float | None:
        return sum(op.us for op in alone.ops if op.kernel in CLASSES[name]) or None

    return us


def _optimizer(alone: _Alone) -> float:
    return alone.rates.optimizer_us(alone.row.sizes["parameters"] * ADAM_BYTES)


def _layer_host(alone: _Alone) -> float:
    """Returns the time of a layer's launches, with the synchronisations in between."""
    rates = alone.rates
    return sum(op.launches * rates.launch_us + op.sync * rates.sync_us for op in alone.ops)


def _garbage(alone: _Alone) -> float:
    return 1e3 * alone.machine.host.gc_ms


def _ring(alone: _Alone) -> float:
    sizes = alone.row.sizes
    gb = sizes["gb"] * (sizes["ranks"] - 1) / sizes["ranks"]
    return alone.rates.ring_us(gb, sizes["ranks"], stride=sizes["stride"])


def _send(alone: _Alone) -> float:
    return alone.rates.ring_us(alone.row.sizes["gb"], 2.0, stride=alone.row.sizes["stride"])


def _dispatch(alone: _Alone) -> float | None:
    exchange = alone.layers.routed.exchange("dispatch", 1.0)
    return exchange[-1].us if exchange else None


def _notify(alone: _Alone) -> float:
    """Returns the time to exchange token counts, with the synchronisation that waits for them."""
    rates = alone.rates
    far = 3.0 if rates.fabric(alone.recipe.parallelism.expert_model_parallel_size) == "network" else 1.0
    return rates.values["link.notify"] * alone.machine.links.latency * far + rates.sync_us


def _overlapped_layer(alone: _Alone) -> float:
    """Returns the time of a layer, forward and backward, with its exchange overlapped, if the host is never late."""
    passes = _never_late(alone)
    return passes.line("merged", alone.kind).even


def _never_late(alone: _Alone) -> Passes:
    passes = Passes(alone.recipe, alone.rates)
    passes.pace = Pace(launch_us=0.0, sync_us=0.0, contention=passes.pace.contention, slowed=passes.pace.slowed)
    return passes


def _contention(alone: _Alone) -> float:
    """Returns the time of a GEMM during a longer exchange, relative to its time alone."""
    return _concurrent(alone, product_us=SHORT_US, exchange_us=LONG_US)[0] / SHORT_US


def _slowed(alone: _Alone) -> float:
    """Returns the time of an exchange during a longer GEMM, relative to its time alone."""
    return _concurrent(alone, product_us=LONG_US, exchange_us=SHORT_US)[1] / SHORT_US


def _concurrent(alone: _Alone, *, product_us: float, exchange_us: float) -> tuple[float, float]:
    """Returns the times, µs, of a GEMM and an exchange that start together."""
    sms = alone.layers.routed.exchange("dispatch", 1.0)[-1].sms
    ops = [
        Op(kernel="gemm", us=product_us, after=()),
        Op(kernel="SendRecv", us=exchange_us, stream=Stream.EP, sms=sms, after=()),
    ]
    times = simulate(ops, _never_late(alone).pace)
    product, exchange = (end - start for start, end in zip(times.start_us, times.end_us, strict=True))
    return product, exchange


def _concurrent_reduction(alone: _Alone) -> float:
    """Returns the rate of a gradient reduction during compute, relative to its rate alone."""
    return alone.rates.values["overlap.dp"] * alone.machine.overlap.dp


def _outside(alone: _Alone) -> float:
    sizes = Sizes(recipe=alone.recipe, load=1.0, quantized=False)
    return outside_gib(alone.recipe, sizes, alone.machine)


def _works(alone: _Alone) -> float | None:
    formats = WORKS.get(alone.row.kind)
    return 1.0 if formats is None or any(alone.recipe.hardware.runs(each) for each in formats) else None


SOFTWARE = ("transformer_engine", "grouped_gemm", "fp8", "graphs", "nvml", "nsys", "profiler", "megatron")
KINDS: dict[str, Callable[[_Alone], float | None]] = {
    **{name: _class(name) for name in CLASSES},
    "optimizer": _optimizer,
    **dict.fromkeys(("host_dense", "host_few", "host_many"), _layer_host),
    "launch": lambda alone: alone.rates.launch_us,
    "launch_profiled": lambda alone: PROFILED * alone.rates.launch_us,
    "sync": lambda alone: alone.rates.sync_us,
    "garbage": _garbage,
    **dict.fromkeys(
        ("ring_near", "ring_both", "ring_far", "small_ring_near", "small_ring_both", "small_ring_far"), _ring
    ),
    **dict.fromkeys(("send_near", "send_far"), _send),
    "dispatch": _dispatch,
    "notify": _notify,
    "copy": lambda alone: alone.rates.copy_us(alone.row.sizes["gb"]),
    "beside": _overlapped_layer,
    "contention": _contention,
    "slowed": _slowed,
    "dp_beside": _concurrent_reduction,
    "layer_kept": lambda alone: layer_kept_gib(alone.recipe, alone.machine, moe=alone.kind.feed == "moe"),
    "layer_peak": lambda alone: layer_peak_gib(alone.recipe, alone.machine, moe=alone.kind.feed == "moe"),
    "outside": _outside,
    "fragmentation": lambda alone: lost_to_fragmentation(alone.recipe, alone.machine),
    "second_step": lambda alone: alone.machine.memory.second_step_gib,
    **dict.fromkeys((*SOFTWARE, "deepep", "hybridep", "ncclep"), _works),
}
