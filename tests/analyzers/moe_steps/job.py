"""An MoE training job in a few numbers, and the program its hosts run: forward, backward, optimizer, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.analyzers.moe_steps import names
from tests.analyzers.moe_steps.program import (
    AUTOGRAD,
    COMPUTE,
    COPY_IN,
    COPY_OUT,
    DATA,
    EXPERT,
    MAIN,
    PIPELINE,
    Allocate,
    Close,
    Host,
    Instruction,
    Kernel,
    Open,
    Sync,
    Times,
)

NOTIFY_US = 10.0
SHORT_US = 8.0  # a kernel this short is over before the next is launched


@dataclass(frozen=True, kw_only=True)
class Job:
    """Times are microseconds of one layer's forward pass unless a name says otherwise; compute in backward takes twice
    as long."""

    layers: int
    steps: int
    micro_batches: int = 1
    ranks: int = 1
    library: names.Library
    noise: float = 0.05
    # device
    attention_us: float
    dense_us: float  # the projections' matrix products: a third before attention, the rest after it
    experts_us: float
    expert_kernels: int = 2
    small_us: float  # each of the memory-bound kernels, seven a layer
    exchange_us: float  # dispatch takes this long, and so does combine
    covered: float = 0.0  # part of each exchange that compute of another micro-batch overlaps
    reduce_us: float  # reduction of a layer's gradients, during the next layer's backward
    optimizer_us: float  # time per step
    in_graph: bool = False  # attention and its projections are one CUDA graph
    # host
    python_us: float  # Python time between two launches
    launch_us: float = 5.0
    pauses_us: tuple[float, ...] = ()  # pauses of one step, at random places
    pause: tuple[str, str] = ("", "")  # name and category of the event that shows a pause
    data_us: float = 0.0  # data loading per step
    data: tuple[str, str] = ("", "")
    # memory
    # how the trace shows recompute: "range", a range of that name; "checkpoint", the backward of checkpoint's autograd
    # function; "" without recompute
    recompute: str = ""
    recompute_experts: bool = True  # experts and exchanges too; else attention only
    allocations: int = 0  # allocations in the forward pass of a layer
    allocation_us: float = 0.0
    offload_us: float = 0.0  # per layer and direction
    # other ranks
    bubble_us: float = 0.0  # total of a micro-batch
    bubble_on_host: bool = False  # the host waits for the peer, and no kernel is on the device
    slow_compute: tuple[float, ...] = ()  # by rank: factor of its compute times
    load: float = 1.0  # load of the busiest rank's experts relative to the others'
    load_moves: bool = False  # another rank is busiest in each layer
    paused_rank: int | None = None  # only this rank's host pauses
    pauses_move: bool = False  # each pause is another rank's
    slow_host: tuple[float, ...] = ()  # by rank: factor of its times from launch to launch
    attention_load: float = 1.0  # load of the busiest rank's attention relative to the others'
    # the trace
    warm_up: int = 0  # steps at the start that are slower, by pauses that no event shows
    operators: bool = True


class Builder:
    """Draws a job's program from a source of chance."""

    def __init__(self, job: Job, random: Random) -> None:
        self.job, self.random = job, random
        self.thread, self.again = MAIN, False
        self.gemm, self.grouped = random.choice(names.GEMMS), random.choice(names.GROUPED)
        self.attention = random.randrange(len(names.ATTENTION))

    def steps(self) -> list[list[Instruction]]:
        return [list(self._step(number)) for number in range(self.job.steps)]

    def _step(self, number: int) -> Iterator[Instruction]:
        job = self.job
        work = list(self._work())
        if number < job.warm_up:
            work = self._disturbed(work, [job.dense_us * job.layers] * 3, ("", ""))
        if job.pauses_us:
            work = self._disturbed(work, list(job.pauses_us), job.pause)
        if job.data_us:
            yield Host(self._same(job.data_us), *job.data)
        yield from work

    def _work(self) -> Iterator[Instruction]:
        job = self.job
        for _ in range(job.micro_batches):
            yield from self._receive(0.6)
            for layer in range(job.layers):
                yield from self._forward(layer)
            yield from self._receive(0.4)
            self.thread = AUTOGRAD
            for layer in reversed(range(job.layers)):
                yield from self._backward(layer)
            self.thread = MAIN
        yield from self._optimizer()

    def _disturbed(self, work: list[Instruction], pauses: list[float], shown: tuple[str, str]) -> list[Instruction]:
        """Returns the work with the host's pauses between its launches."""
        for number, us in enumerate(pauses):
            rank = number % self.job.ranks if self.job.pauses_move else self.job.paused_rank
            times = tuple(us if rank in (None, r) else 0.0 for r in range(self.job.ranks))
            thread = MAIN if shown[0].startswith("enumerate") else AUTOGRAD
            at = self.random.randrange(len(work) // 4, len(work))
            while getattr(work[at], "in_graph", False):
                at -= 1
            work.insert(at, Host(times, *shown, thread=thread))
        return work

    # one layer

    def _forward(self, layer: int, *, only_attention: bool = False) -> Iterator[Instruction]:
        job = self.job
        yield from self._small(names.NORM)
        yield from self._attention(1.0, names.ATTENTION[self.attention])
        yield from self._small(names.NORM)
        if only_attention:
            return
        yield from self._small(names.ROUTER)
        yield from self._small(names.PERMUTE)
        for _ in range(job.allocations if not self.again else 0):
            name = self.random.choice(("cudaMalloc", "cudaFree"))
            yield Allocate(self._same(self._noisy(job.allocation_us)), name, self.thread)
        yield from self._exchange("dispatch")
        yield from self._experts(layer, 1.0)
        yield from self._exchange("combine")
        yield from self._small(names.UNPERMUTE, after=(EXPERT,))
        yield from self._small(names.ADD)
        if job.offload_us and not self.again:
            yield self._copy(names.TO_HOST, COPY_OUT, after=(COMPUTE, COPY_IN))

    def _backward(self, layer: int) -> Iterator[Instruction]:
        job = self.job
        if job.offload_us:
            yield self._copy(names.FROM_HOST, COPY_IN, after=(COMPUTE, COPY_OUT))
            after: tuple[int, ...] = (COPY_IN,)
        else:
            after = ()
        if job.recompute == "checkpoint":
            yield Open("CheckpointFunctionBackward", "cpu_op", self.thread)
        if job.recompute:
            yield from self._again(layer)
        yield Open("autograd::engine::evaluate_function: MulBackward0", "cpu_op", self.thread)
        yield from self._small(names.ADD, 2.0, after=after)
        yield from self._exchange("dispatch")
        yield from self._experts(layer, 2.0)
        yield from self._exchange("combine")
        yield from self._small(names.PERMUTE, 2.0, after=(EXPERT,))
        yield from self._attention(2.0, names.ATTENTION_BACKWARD[self.attention])
        yield from self._small(names.NORM, 2.0)
        yield Close()
        if job.recompute == "checkpoint":
            yield Close()
        if job.reduce_us:
            arguments = names.nccl("_reduce_scatter_base", "DATA_PARALLEL_GROUP_WITH_CP", 8)
            yield self._collective(names.REDUCE_SCATTER, job.reduce_us, DATA, (COMPUTE,), arguments)

    def _again(self, layer: int) -> Iterator[Instruction]:
        self.again = True
        if self.job.recompute == "range":
            yield Open("recompute", thread=self.thread, again=True)
        yield from self._forward(layer, only_attention=not self.job.recompute_experts)
        if self.job.recompute == "range":
            yield Close(again=True)
        self.again = False

    def _attention(self, passes: float, name: str) -> Iterator[Instruction]:
        job = self.job
        for number, (kernel, us) in enumerate(
            ((self.gemm, job.dense_us / 3), (name, job.attention_us), (self.gemm, job.dense_us * 2 / 3))
        ):
            compute = self._compute(kernel, us * passes)
            if number == 1:
                longest, *others = compute.us
                compute = compute._replace(us=(longest * job.attention_load, *others))
            if job.in_graph and number:
                yield compute._replace(in_graph=True)
            else:
                yield from self._launched(compute)

    def _experts(self, layer: int, passes: float) -> Iterator[Instruction]:
        job = self.job
        busiest = layer % job.ranks if job.load_moves else 0
        each = passes * job.experts_us / job.expert_kernels
        for number in range(job.expert_kernels):
            us = tuple(t * (job.load if rank == busiest else 1.0) for rank, t in enumerate(self._by_rank(each)))
            after = (EXPERT,) if number == 0 else ()
            yield from self._launched(self._kernel(self.grouped, us, after=after))
            if number == 0:
                yield from self._small(names.ACTIVATION, passes)

    def _exchange(self, what: str) -> Iterator[Instruction]:
        """Draws an exchange on a stream of its own; the compute that overlaps it does not wait for it, all later work
        does."""
        job, library = self.job, self.job.library
        if what == "dispatch" and library.syncs:
            yield Sync((COMPUTE,), thread=self.thread, again=self.again)
        if what == "dispatch" and library.notify and self.thread == MAIN:  # backward knows the token counts already
            yield self._collective(library.notify, NOTIFY_US, EXPERT, (COMPUTE,), ())
            yield Sync((EXPERT,), "", self.thread, again=self.again)
        if library.ranges:
            yield Open(what, thread=self.thread, again=self.again)
        yield from self._pause_between()
        yield self._collective(getattr(library, what), job.exchange_us, EXPERT, (COMPUTE,), library.arguments)
        if library.ranges:
            yield Close(again=self.again)
        for _ in range(2 if job.covered else 0):
            yield from self._launched(self._compute(self.gemm, job.covered * job.exchange_us / 2))

    # the ends of a step

    def _receive(self, part: float) -> Iterator[Instruction]:
        job = self.job
        if not job.bubble_us:
            return
        wait_us = self._noisy(part * job.bubble_us)
        if job.bubble_on_host:
            yield Sync((PIPELINE,), thread=self.thread, wait_us=wait_us, around="pp_send_recv")
            return
        arguments = names.nccl("recv", "PIPELINE_MODEL_PARALLEL_GROUP", 4)
        for wait in (wait_us, 0.0):
            receive = self._collective(names.SEND_RECV, 30.0, PIPELINE, (COMPUTE,), arguments)
            yield receive._replace(wait_us=wait)
            yield from self._launched(self._compute(names.ADD, job.small_us, after=(PIPELINE,)))

    def _optimizer(self) -> Iterator[Instruction]:
        job = self.job
        us = self._same(job.optimizer_us)
        yield Open("Optimizer.step#Adam.step")
        yield from self._launched(self._kernel(names.OPTIMIZER, us, after=(DATA, EXPERT, COPY_IN, COPY_OUT)))
        yield Close()
        yield Sync((COMPUTE, EXPERT, DATA), "cudaDeviceSynchronize")

    # kernels

    def _small(self, name: str, passes: float = 1.0, after: tuple[int, ...] = ()) -> Iterator[Instruction]:
        yield from self._launched(self._compute(name, passes * self.job.small_us, after=after)._replace(fusable=True))

    def _launched(self, kernel: Kernel) -> Iterator[Instruction]:
        yield from self._pause_between()
        yield kernel

    def _pause_between(self) -> Iterator[Instruction]:
        slower = self.job.slow_host or (1.0,) * self.job.ranks
        us = tuple(t * times for t, times in zip(self._by_rank(self.job.python_us, even=True), slower, strict=True))
        yield Host(us, "aten::op", "cpu_op", self.thread, self.again)

    def _compute(self, name: str, us: float, after: tuple[int, ...] = ()) -> Kernel:
        return self._kernel(name, self._by_rank(us), after=after)

    def _kernel(self, name: str, us: Times, after: tuple[int, ...] = ()) -> Kernel:
        return Kernel(
            name, us, self._launch(), after=after, thread=self.thread, fusable=max(us) < SHORT_US, again=self.again
        )

    def _collective(
        self, name: str, us: float, stream: int, after: tuple[int, ...], arguments: names.Arguments
    ) -> Kernel:
        return Kernel(
            name,
            self._same(self._noisy(us)),
            self._launch(),
            stream,
            after,
            self.thread,
            arguments=arguments,
            communication=True,
            collective=self.job.ranks > 1,
            again=self.again,
        )

    def _copy(self, name: str, stream: int, after: tuple[int, ...]) -> Kernel:
        us = self._same(self._noisy(self.job.offload_us))
        return Kernel(name, us, self._launch(), stream, after, self.thread, "gpu_memcpy", offload=True)

    def _launch(self) -> Times:
        return self._by_rank(self.job.launch_us, even=True)

    def _noisy(self, us: float) -> float:
        return us * self.random.lognormvariate(0.0, self.job.noise)

    def _same(self, us: float) -> Times:
        return (us,) * self.job.ranks

    def _by_rank(self, us: float, *, even: bool = False) -> Times:
        slower = (1.0,) * self.job.ranks if even or not self.job.slow_compute else self.job.slow_compute
        return tuple(self._noisy(us) * one for one in slower)
