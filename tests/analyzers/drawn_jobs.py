"""Several ranks drawn by hand: in each layer a rank computes, then combines with its group until the last is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from analyzers import analyze
from analyzers.diagnosis import Analysis
from analyzers.intervals import Floats
from tests.analyzers.drawing import DISPATCH, GEMM, Drawing

COMBINE = DISPATCH.replace("dispatch", "combine")
EXPERTS = "void cutlass::device_kernel<cutlass::gemm::GroupProblemShape<64>>"
LAUNCH_AHEAD_US = 20.0


@dataclass(frozen=True, kw_only=True)
class DrawnJob:
    """compute_us: float64[R, S, L], what rank R computes in step S before the combine of layer L.

    clocks: of each rank the offset (us) and the drift; arguments: NCCL's, by group; drawn: the ranks that are traced.
    """

    compute_us: Floats
    groups: Sequence[Sequence[int]]
    transfer_us: float = 50.0
    kernel: str = GEMM
    clocks: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    arguments: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    world_size: int | None = None
    drawn: Sequence[int] | None = None

    @property
    def ranks(self) -> int:
        return len(self.compute_us)

    def waits_us(self) -> Floats:
        """Returns float64[R]: how long each rank waits in a step."""
        waits = np.empty_like(self.compute_us)
        arrive = self._arrivals()
        for group in self.groups:
            members = list(group)
            waits[members] = arrive[members].max(axis=0) - arrive[members]
        average: Floats = waits.sum(axis=2).mean(axis=1)
        return average

    def _arrivals(self) -> Floats:
        ranks, steps, layers = self.compute_us.shape
        arrive = np.empty_like(self.compute_us)
        now = np.full(ranks, 100.0)
        for step in range(steps):
            for layer in range(layers):
                arrive[:, step, layer] = now + self.compute_us[:, step, layer]
                for group in self.groups:
                    now[list(group)] = arrive[list(group), step, layer].max() + self.transfer_us
        return arrive

    def drawings(self) -> list[Drawing]:
        arrive = self._arrivals()
        ends = np.empty_like(arrive)
        for group in self.groups:
            ends[list(group)] = arrive[list(group)].max(axis=0) + self.transfer_us
        group_of = {rank: k for k, group in enumerate(self.groups) for rank in group}
        chosen = range(self.ranks) if self.drawn is None else self.drawn
        return [self._drawing(rank, arrive[rank], ends[rank], group_of[rank]) for rank in chosen]

    def _drawing(self, rank: int, arrive: Floats, end: Floats, group: int) -> Drawing:
        offset, drift = self.clocks.get(rank, (0.0, 0.0))
        drawing = Drawing(rank=rank, world_size=self.world_size or self.ranks)

        def at(time: float) -> float:
            return time * (1 + drift) + offset

        now = 100.0
        for step, (arrivals, ended) in enumerate(zip(arrive.tolist(), end.tolist(), strict=True)):
            drawing.step(step, at(now), at(ended[-1]))
            for arrives, ends in zip(arrivals, ended, strict=True):
                launched = at(now - LAUNCH_AHEAD_US)
                drawing.kernel(self.kernel, at(now), at(arrives), launched=launched)
                drawing.kernel(
                    COMBINE, at(arrives), at(ends), launched=launched, stream=8, **self.arguments.get(group, {})
                )
                now = ends
        return drawing

    def analyze(self, folder: Path) -> Analysis:
        for drawing in self.drawings():
            drawing.write(folder)
        return analyze([folder])

    def on_clocks(self, clocks: Mapping[int, tuple[float, float]]) -> DrawnJob:
        return replace(self, clocks=clocks)


def uneven(
    ranks: int, *, steps: int = 3, layers: int = 12, seed: int = 0, slow: Mapping[int, float] | None = None
) -> Floats:
    """Returns float64[R, S, L]: 150 to 250 us of compute before each combine, times the rank's factor in `slow`."""
    drawn = np.random.default_rng(seed).uniform(150.0, 250.0, (ranks, steps, layers)).round(1)
    for rank, times in (slow or {}).items():
        drawn[rank] *= times
    return drawn


def nccl(name: str, ranks: Sequence[int], *, collective: str = "all_to_allv") -> dict[str, Any]:
    """Returns NCCL's arguments as torch writes them."""
    return {
        "Process Group Name": name,
        "Process Group Ranks": str(list(ranks)),
        "Group size": len(ranks),
        "Collective name": collective,
    }
