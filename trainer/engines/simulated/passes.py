"""Time of a pass of one micro batch through a model chunk: layers are simulated on streams, each kind of layer once.

The time of a layer grows with the load of its hottest EP rank; it is simulated at two loads and interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from trainer.engines.simulated.layer import Layers, Segments
from trainer.engines.simulated.ops import Concurrent, Op, Segment, Stream, Work
from trainer.engines.simulated.parts import Kind
from trainer.engines.simulated.rates import Rates
from trainer.engines.simulated.streams import OpTimes, Pace, simulate
from trainer.recipe.schema import Recipe

LOADS = (1.0, 1.5)  # loads at which layers are simulated
IN_A_ROW = 2  # layers simulated in a row: the last one is in the steady state of host and device


@dataclass(frozen=True, kw_only=True)
class Line:
    """A time that is linear in the load: microseconds at a load of 1, and the increase per unit of load."""

    even: float
    slope: float

    def at(self, load: float) -> float:
        return self.even + self.slope * (load - 1)


class Passes:
    """Times of the layers of one recipe on one machine. compute, host: a straggler's factors on its times, else 1."""

    def __init__(self, recipe: Recipe, rates: Rates, *, compute: float = 1.0, host: float = 1.0) -> None:
        self.recipe, self.rates = recipe, rates
        self.layers = Layers(recipe, rates)
        self.compute = compute
        self._lines: dict[tuple[str, Kind], Line] = {}
        machine, values = rates.machine, rates.values
        self.pace = Pace(
            launch_us=rates.launch_us * host,
            sync_us=rates.sync_us * host,
            contention=machine.overlap.sm_contention,
            slowed=values["overlap.slowed"] * machine.overlap.slowed,
        )
        connections = recipe.knob("CUDA_DEVICE_MAX_CONNECTIONS") == 1
        self._overlapped_share = (
            values["overlap.ep"] * machine.overlap.ep * (values["overlap.one_connection"] if connections else 1)
        )

    def line(self, way: str, kind: Kind) -> Line:
        """Returns the time over load of a layer, `forward`, `backward` or `merged` (one forward and one backward under
        EP overlap, the exchange of each concurrent with the other's compute)."""
        if (way, kind) not in self._lines:
            us = [self._steady(self.in_a_row(way, kind, load)) for load in self._loads(kind)]
            self._lines[way, kind] = self._line(us)
        return self._lines[way, kind]

    def in_a_row(self, way: str, kind: Kind, load: float) -> list[Op]:
        """Returns `IN_A_ROW` successive layers of a kind, `forward`, `backward` or `merged`."""
        if way == "merged":
            return self.woven(kind, load)
        work = Work()
        after: tuple[int, ...] = ()
        for _ in range(IN_A_ROW):
            segments = self.layers.forward(kind, load) if way == "forward" else self.layers.backward(kind, load)
            after = work.chain(segments.all, after)
        return self._slowed(work.ops)

    def woven(self, kind: Kind, load: float) -> list[Op]:
        """Returns `IN_A_ROW` layers forward and as many backward, interleaved as Megatron-Core's combined 1F1B launches
        them."""
        work = Work()
        ahead: tuple[int, ...] = ()
        behind: tuple[int, ...] = ()
        for _ in range(IN_A_ROW):
            ahead, behind = self.weave(
                work, self.layers.forward(kind, load), self.layers.backward(kind, load), ahead, behind
            )
        return self._slowed(work.ops)

    def weave(
        self, work: Work, forward: Segments, backward: Segments, ahead: tuple[int, ...], behind: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Adds the interleaved forward and backward of a layer to `work`. `ahead` and `behind` are the ops that end the
        forward and the backward chain of the layer before; returns those of this layer."""
        behind = work.chain(backward.before, behind)
        sent_back, alone = self._shared_out(backward.send)
        behind = work.chain(sent_back, behind)
        ahead = work.chain(forward.before, ahead)
        behind = work.chain(alone, behind)
        sent, alone = self._shared_out(forward.send)
        ahead = work.chain(sent, ahead)
        behind = work.chain(backward.middle, behind)
        ahead = work.chain(alone, ahead)
        back, alone = self._shared_out(backward.back)
        behind = work.chain(back, behind)
        late = work.chain(backward.late, self._before(back, work))
        ahead = work.chain(forward.middle, ahead)
        behind = work.chain(alone, behind)
        back, alone = self._shared_out(forward.back)
        ahead = work.chain(back, ahead)
        behind = work.chain(backward.after, behind)
        ahead = work.chain(alone, ahead)
        ahead = work.chain(forward.after, ahead)
        return ahead, tuple(dict.fromkeys((*behind, *late)))

    @staticmethod
    def _before(back: Segment, work: Work) -> tuple[int, ...]:
        """Returns the operation that weight gradients wait for: the one before the exchange that was just added."""
        place = len(work.ops) - len(back) - 1
        return (place,) if place >= 0 else ()

    def _shared_out(self, segment: Segment) -> tuple[list[Op | Concurrent], list[Op | Concurrent]]:
        """Splits an exchange into a part that can overlap with compute and a part that cannot and delays it."""
        overlapped: list[Op | Concurrent] = []
        alone: list[Op | Concurrent] = []
        for item in segment:
            if isinstance(item, Concurrent) or not item.us:
                overlapped.append(item)
                continue
            overlapped.append(replace(item, us=self._overlapped_share * item.us))
            if self._overlapped_share < 1:
                left = (1 - self._overlapped_share) * item.us
                alone.append(replace(item, us=left, launches=0.0, gb=0.0, stream=Stream.COMPUTE, sms=0.0))
        return overlapped, alone

    def _loads(self, kind: Kind) -> Sequence[float]:
        return LOADS if kind.feed == "moe" and self.recipe.parallelism.expert_model_parallel_size > 1 else LOADS[:1]

    def _steady(self, ops: Sequence[Op]) -> float:
        """Returns the time per layer, µs, of the later ones of several layers in a row."""
        if not ops:
            return 0.0
        times = self.simulate(ops)
        half = len(ops) // IN_A_ROW
        first = max(times.end_us[:half])
        return max(times.until_us - first, 0.0) / (IN_A_ROW - 1)

    def simulate(self, ops: Sequence[Op]) -> OpTimes:
        return simulate(ops, self.pace)

    def _slowed(self, ops: list[Op]) -> list[Op]:
        if self.compute == 1:
            return ops
        return [replace(op, us=op.us * self.compute) if not op.stream else op for op in ops]

    @staticmethod
    def _line(us: Sequence[float]) -> Line:
        if len(us) == 1:
            return Line(even=us[0], slope=0.0)
        return Line(even=us[0], slope=(us[1] - us[0]) / (LOADS[1] - LOADS[0]))
