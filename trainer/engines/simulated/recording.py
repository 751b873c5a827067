"""Records one rank in a step as a profiler would: kernels over time, their launches, ranges, repetitions.

A step is composed of layers as `passes.py` simulates them, at the times that the pipeline gives their passes. Where the
hottest or a late rank takes longer, the other ranks' next collective does: they wait inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from trainer.engines.simulated.ops import Op, Stream
from trainer.engines.simulated.parts import Kind
from trainer.engines.simulated.passes import IN_A_ROW
from trainer.engines.simulated.pipeline import Turn, steady
from trainer.engines.simulated.routing import Floats
from trainer.engines.simulated.step import Simulation
from trainer.engines.simulated.streams import TO_DEVICE_US, Pace

MARKS = {"forward": "forward_microbatch", "backward": "backward_microbatch", "merged": "backward_microbatch"}
NORM_US = 20.0  # duration of the all-reduce of the gradient norm, for which the host waits once per step
MEETING = (Stream.EP, Stream.TP, Stream.CP)  # streams in which ranks wait for each other inside a pass


@dataclass(frozen=True, eq=False)
class Block:
    """Operations that repeat, such as a layer in its steady state.

    start_us, end_us: float64[N], when the device runs each, from the block's start; us: the duration of the block.
    """

    ops: tuple[Op, ...]
    start_us: Floats
    end_us: Floats
    us: float

    @cached_property
    def meets(self) -> int | None:
        """Returns the index of the last operation in which ranks wait for each other; None if there is none."""
        return max((i for i, op in enumerate(self.ops) if op.stream in MEETING), default=None)


@dataclass(frozen=True, eq=False)
class PlacedBlock:
    """A block at its place in a step: the same arrays, counted from the step's start."""

    block: Block
    start_us: Floats
    end_us: Floats


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A window of device time that counts `times` times."""

    start_us: float
    end_us: float
    times: float


@dataclass(kw_only=True)
class Recording:
    """A step of one rank.

    pace: the speed of its host, which launches in the order of `placed`; passes: (name, first index, last index in
    `placed`) of each pass; pauses: (name, start, end) of host work without launches; recorded: how many of the step's
    microbatches were recorded; duration_us: of the recorded part, not of the whole step.
    """

    pace: Pace
    placed: list[PlacedBlock] = field(default_factory=list)
    pauses: list[tuple[str, float, float]] = field(default_factory=list)
    passes: list[tuple[str, int, int]] = field(default_factory=list)
    repeated: Repeated | None = None
    microbatches: int = 1
    recorded: int = 1
    duration_us: float = 0.0

    def whole_us(self, at: float) -> float:
        """Converts a time after the repeated window to the time in the whole step."""
        one = self.repeated
        return at + (one.times - 1) * (one.end_us - one.start_us) if one else at


class Recorder:
    """Records a simulated step of one rank."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self.simulation, self.rank = simulation, rank
        layout = simulation.layout
        self.place = simulation.pipeline_rank(rank)
        inside = rank % max(1, layout.world // layout.pp)
        self.expert_rank = inside // layout.etp % layout.ep
        self.slowest = simulation.passes[self.place]
        late = simulation.is_late(rank)
        self.own = self.slowest if late else simulation.plain
        self._blocks: dict[tuple[str, Kind, float, float], Block] = {}

    def step(self) -> Recording:
        simulation = self.simulation
        run, end = simulation.run, simulation.end
        mine = end.ranks[self.place]
        overlapped = bool(simulation.recipe.knob("overlap_param_gather"))
        found = Recording(
            pace=self.own.pace, microbatches=run.schedule.microbatches, recorded=run.simulated.microbatches
        )
        begin = self._gather(found, 0.0, mine.parameters_us) if overlapped else 0.0
        now, ends = begin, list[float]()
        for turn in run.turns[self.place]:
            if run.schedule.pp > 1 and begin + turn.start_us > now:
                self._wait(found, now, begin + turn.start_us)
                now = begin + turn.start_us
            now = self._turn(found, turn, now)
            ends.append(now)
        window = steady(run.simulated, self.place)
        if run.left_out and window.stop > window.start:
            since = ends[window.start - 1] if window.start else begin
            found.repeated = Repeated(start_us=since, end_us=ends[window.stop - 1], times=1.0 + run.left_out)
        self._hidden(found, "ReduceScatter", "gradient_sync", now, mine.reduce_us - mine.gradients_us)
        behind = begin + mine.passes_us - found.whole_us(now)  # time by which other ranks of its stage are later
        at = self._communicate(found, "ReduceScatter", Stream.DP, "gradient_sync", now, mine.gradients_us + behind)
        everyone = max(rank.passes_us + rank.gradients_us for rank in end.ranks)
        wait = max(0.0, everyone - mine.passes_us - mine.gradients_us)
        norm = Op(kernel="AllReduce", us=wait, stream=Stream.NORM, ranges=("gradient_norm",), sync=True)
        at = self._place(found, norm, at, wait + NORM_US)
        restart = found.pace.sync_us + found.pace.launch_us + TO_DEVICE_US  # the host waited, then launches
        at += restart
        adam = Op(kernel="adam", us=mine.optimizer_us, ranges=("optimizer",))
        at = self._place(found, adam, at, mine.optimizer_us)
        if not overlapped:
            at = self._gather(found, at, mine.parameters_us)
        after = max(rank.optimizer_us + rank.parameters_us for rank in end.ranks)
        at += max(0.0, after - mine.optimizer_us - mine.parameters_us)
        if simulation.pauses_us:
            found.pauses.append(("gc", at, at + simulation.pauses_us))
        found.duration_us = at + end.host_us + simulation.pauses_us - NORM_US - restart
        return found

    def _turn(self, found: Recording, turn: Turn, at: float) -> float:
        """Adds the layers of a turn one after another from `at`; returns when they end.

        The waiting for other ranks inside a pass is put into its collectives.
        """
        simulation, first = self.simulation, len(found.placed)
        way = "merged" if len(turn.passes) > 1 else "forward" if turn.passes[0].forward else "backward"
        stage = simulation.stages[self.place][turn.passes[0].chunk]
        layers = [*stage.layers, *([len(simulation.kinds) - 1] * stage.mtp)]
        blocks = [self._block(way, layer) for layer in (layers if way == "forward" else reversed(layers))]
        again = {"forward": 1, "backward": 2, "merged": 3}[way]
        ends = [replace(op, us=op.us * again) for op in simulation.ends(stage)]
        before, behind = (ends, []) if (way == "forward") == stage.embeds else ([], ends)
        length = sum(block.us for block in blocks) + sum(op.us for op in ends)
        waiting = (turn.end_us - turn.start_us) / length - 1 if length else 0.0
        for op in before:
            at = self._place(found, op, at, op.us)
        for block in blocks:
            at = self._add_layer(found, block, at, waiting * block.us)
        for op in behind:
            at = self._place(found, op, at, op.us)
        if len(found.placed) > first:
            found.passes.append((MARKS[way], first, len(found.placed) - 1))
        return at

    def _add_layer(self, found: Recording, block: Block, at: float, waiting: float) -> float:
        """Adds a layer from `at`, whose last collective, if any, is longer by `waiting`; returns when it ends."""
        later = max(0.0, waiting) if block.meets is not None else 0.0
        start, end = block.start_us + at, block.end_us + at
        if later and block.meets is not None:
            since = block.end_us[block.meets]
            behind = block.start_us >= since
            behind[block.meets] = False
            end[block.meets] += later
            start[behind] += later
            end[behind] += later
        found.placed.append(PlacedBlock(block, start, end))
        return at + block.us + later

    def _block(self, way: str, layer: int) -> Block:
        routing = self.simulation.routing
        kind = self.simulation.kinds[layer]
        hottest, own = float(routing.hottest[layer]), float(routing.own[layer][self.expert_rank])
        key = way, kind, round(hottest, 3), round(min(own, hottest), 3)
        if key not in self._blocks:
            self._blocks[key] = self._simulated_block(*key)
        return self._blocks[key]

    def _simulated_block(self, way: str, kind: Kind, hottest: float, own: float) -> Block:
        """Returns the last of several layers in a row, with times from its start."""
        slow = self.slowest.in_a_row(way, kind, hottest)
        mine = slow if self.own is self.slowest and own == hottest else self._waiting(slow, way, kind, own)
        times = self.own.simulate(mine)
        half = len(mine) // IN_A_ROW * (IN_A_ROW - 1)
        begin = max(times.end_us[:half], default=0.0)
        kept = [place for place in range(half, len(mine)) if mine[place].us]
        start, end = (np.array([us[place] - begin for place in kept]) for us in (times.start_us, times.end_us))
        ops = tuple(mine[place] for place in kept)
        return Block(ops, start, end, max(times.until_us - begin, 0.0))

    def _waiting(self, slow: Sequence[Op], way: str, kind: Kind, own: float) -> list[Op]:
        """Returns this rank's operations: where its load is lower they are shorter, and its next collective is longer
        by as much."""
        found, owed = list[Op](), 0.0
        for hot, op in zip(slow, self.own.in_a_row(way, kind, own), strict=True):
            if op.stream in (Stream.EP, Stream.TP) and op.us:
                found.append(replace(op, us=hot.us + owed))
                owed = 0.0
            else:
                owed += max(0.0, hot.us - op.us)
                found.append(op)
        return found

    def _wait(self, found: Recording, since: float, until: float) -> None:
        """Adds waiting for another stage: a receive that was launched early and spins."""
        op = Op(kernel="SendRecv", us=until - since, stream=Stream.PP, ranges=("pp_send_recv",))
        self._place(found, op, since, until - since)

    def _place(self, found: Recording, op: Op, at: float, us: float) -> float:
        if us > 0:
            block = Block((op,), np.zeros(1), np.array([us]), us)
            found.placed.append(PlacedBlock(block, np.array([at]), np.array([at + us])))
        return at + us

    def _communicate(self, found: Recording, kernel: str, stream: Stream, name: str, at: float, us: float) -> float:
        return self._place(found, Op(kernel=kernel, us=us, stream=stream, ranges=(name,)), at, us)

    def _gather(self, found: Recording, at: float, us: float) -> float:
        return self._communicate(found, "AllGather", Stream.DP, "param_gather", at, us)

    def _hidden(self, found: Recording, kernel: str, name: str, until: float, us: float) -> None:
        """Adds traffic that overlapped the last passes."""
        if us > 0:
            self._communicate(found, kernel, Stream.DP, name, max(0.0, until - us), min(us, until))
