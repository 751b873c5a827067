"""Steps of equal micro batches drawn by hand: recorded whole, or as an excerpt that holds a few of the micro
batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.analyzers.drawing import BACKWARD, DISPATCH, GEMM, MAIN, Drawing
from tests.analyzers.drawn_jobs import COMBINE, EXPERTS, nccl

PERIOD_US = 1000.0
ELEMENTWISE = "void at::native::elementwise_kernel<4>"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OPTIMIZER_US = 700.0
BETWEEN_STEPS_US = 400.0


@dataclass(frozen=True, kw_only=True)
class DrawnMicroBatches:
    """Steps of one rank with `microbatches` each; what all ranks do together ends at the same time on all.

    slower_us: extra time of its dense work over the fastest rank's. held: the number of micro batches in an excerpt,
    the first and the last among them; None for all.
    """

    rank: int = 0
    ranks: int = 2
    microbatches: int = 16
    steps: int = 2
    held: int | None = None
    slower_us: float = 0.0
    group: dict[str, Any] = field(default_factory=lambda: nccl("3", [0, 1]))

    def excerpt(self, held: int) -> DrawnMicroBatches:
        return DrawnMicroBatches(
            rank=self.rank,
            ranks=self.ranks,
            microbatches=self.microbatches,
            steps=self.steps,
            held=held,
            slower_us=self.slower_us,
            group=self.group,
        )

    @property
    def times(self) -> float:
        return 1.0 if self.held is None else (self.microbatches - 2) / (self.held - 2)

    def drawing(self, *, shift_us: float = 0.0) -> Drawing:
        drawing = Drawing(rank=self.rank, world_size=self.ranks)
        drawn = self.microbatches if self.held is None else self.held
        repeated = []
        start = shift_us
        for step in range(self.steps):
            first = start + 300.0
            for k in range(drawn):
                self._microbatch(drawing, first + k * PERIOD_US)
            end = self._end(drawing, first + drawn * PERIOD_US)
            drawing.step(step, start, end)
            if step == 0:  # so that the steps differ
                drawing.call("cudaMalloc", start + 5, start + 45)
            repeated.append(
                {"start_us": first + PERIOD_US, "end_us": first + (drawn - 1) * PERIOD_US, "times": self.times}
            )
            start = end + BETWEEN_STEPS_US
        if self.held is not None:
            drawing.header = {"microbatches": self.microbatches, "microbatches_traced": self.held, "repeated": repeated}
        return drawing

    def _microbatch(self, drawing: Drawing, t: float) -> None:
        """Draws a micro batch whose device work begins at `t`; its first kernels are launched before, in the period of
        the previous one."""
        dense = t + 300 + self.slower_us
        drawing.range("forward", t - 130, t + 45).operator("aten::mm", t - 120, t - 90)
        drawing.kernel(GEMM, t, dense, launched=t - 110)
        drawing.kernel(DISPATCH, dense - 40, t + 500, launched=t - 100, stream=8, **self.group)
        drawing.kernel(EXPERTS, t + 500, t + 620, launched=t - 90)
        drawing.kernel(COMBINE, t + 620, t + 680, launched=t - 80, stream=8, **self.group)
        drawing.call("cudaStreamSynchronize", t + 50, t + 684)
        drawing.operator("aten::add", t + 690, t + 735)
        for k in range(3):  # short kernels in a row, each launched later than the device could run it
            drawing.kernel(ELEMENTWISE, t + 706 + k * 12, t + 711 + k * 12, launched=t + 702 + k * 12)
        drawing.copy("Memcpy DtoH (Device -> Pinned)", t + 745, t + 760, launched=t + 740)
        drawing.call("cudaMalloc", t + 762, t + 777)
        drawing.range("recompute", t + 780, t + 830, BACKWARD)
        drawing.kernel(GEMM, t + 800, t + 860, launched=t + 790, thread=BACKWARD)
        drawing.copy("Memcpy HtoD (Pinned -> Device)", t + 845, t + 870, launched=t + 835)

    def _end(self, drawing: Drawing, t: float) -> float:
        """Draws the end of a step: gradients reduced, the optimizer, and the host waiting for it."""
        drawing.range("optimizer", t - 20, t + 30, MAIN)
        world = nccl("0", range(self.ranks), collective="_reduce_scatter_base")
        drawing.kernel(REDUCE_SCATTER, t + 20 + self.slower_us / 10, t + 200, launched=t - 10, stream=9, **world)
        drawing.kernel("void multi_tensor_apply_kernel<AdamFunctor>", t + 200, t + OPTIMIZER_US, launched=t)
        drawing.call("cudaDeviceSynchronize", t + 40, t + OPTIMIZER_US + 5)
        return t + OPTIMIZER_US + 20
