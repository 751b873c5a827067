"""Work of a step outside the passes: gradient reduction, optimizer step, parameter gather, and their overlap with
passes. Gradient buckets are sent as the last micro batch's backward produces them; parameter buckets must arrive when
the first micro batch's forward of the next step needs them. Each pipeline rank has its own times; the slowest
decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainer.engines.simulated.pipeline import Run
from trainer.engines.simulated.rates import GIGA, Rates
from trainer.engines.simulated.stages import Stage
from trainer.recipe.layout import layout_of

MAX_BUCKETS = 24  # most buckets that are simulated; more of them would only be smaller
OWN_BUCKET = 40e6  # least parameters per bucket; Megatron-Core uses 1e6 per DP rank if that is more
MASTER_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "uint8": 1.0}
COPIED_BYTES = 6.0  # bytes per parameter: its gradient to the host, the parameter back
HIDDEN_COPIES = 0.88  # share of the copies that overlap_cpu_optimizer_d2h_h2d hides: row E020 of effects.csv


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """Microseconds of one pipeline rank after its last pass: exposed gradient reduction, optimizer step, exposed
    parameter gather."""

    passes_us: float  # end of its last pass, from the start of the step
    gradients_us: float
    optimizer_us: float
    parameters_us: float
    reduce_us: float  # whole time of the reduction, exposed and hidden
    gather_us: float  # whole time of the gather, exposed and hidden


@dataclass(frozen=True, kw_only=True)
class EndOfStep:
    ranks: tuple[RankEnd, ...]
    host_us: float  # host time that nothing hides
    step_us: float


def end_of_step(rates: Rates, run: Run, stages: Sequence[Sequence[Stage]]) -> EndOfStep:
    """Returns the times of the end of a step, by rank and in total. stages: [PP][VPP]."""
    ends = [_End(rates, run, rank, own).times() for rank, own in enumerate(stages)]
    machine, values = rates.machine, rates.values
    slow = values["host.grace"] if rates.hardware.on_grace else 1.0
    fixed = 0.0 if rates.hardware.is_cpu else values["host.step"] * slow * machine.host.launch
    host = 1e3 * (fixed + machine.host.step_ms)
    reduced = max(rank.passes_us + rank.gradients_us for rank in ends)
    after = max(rank.optimizer_us + rank.parameters_us for rank in ends)
    return EndOfStep(ranks=tuple(ends), host_us=host, step_us=reduced + after + host)


class _End:
    """Computes the end of the step of one pipeline rank."""

    def __init__(self, rates: Rates, run: Run, rank: int, stages: Sequence[Stage]) -> None:
        self.rates, self.run, self.rank, self.recipe = rates, run, rank, rates.recipe
        self.dense, self.experts = sum(stage.dense for stage in stages), sum(stage.experts for stage in stages)
        self.layout = layout_of(self.recipe)
        knob = self.recipe.knob
        self.sharded = bool(knob("use_distributed_optimizer") or knob("use_megatron_fsdp"))
        self.instances = float(knob("num_distributed_optimizer_instances") or 1)
        self.replicas = self.layout.dp * self.layout.cp / self.instances
        self.expert_replicas = self.layout.edp / self.instances

    def times(self) -> RankEnd:
        reduce_us, gather_us = (0.0, 0.0) if self._in_passes() else (self._reduce_us(), self._gather_us())
        buckets = self._buckets()
        return RankEnd(
            passes_us=self.run.until_us(self.rank),
            gradients_us=self._gradients_left(reduce_us, buckets),
            optimizer_us=self._optimizer_us(),
            parameters_us=self._parameters_left(gather_us, buckets),
            reduce_us=reduce_us,
            gather_us=gather_us,
        )

    def _rings(self, bytes_each: float) -> float:
        """Returns the ring-collective time, µs, for dense and expert parameters, over their data-parallel groups."""
        layout = self.layout
        dense = self._ring(self.dense * bytes_each, self.replicas, float(layout.tp))
        return dense + self._ring(self.experts * bytes_each, self.expert_replicas, float(layout.ep * layout.etp))

    def _ring(self, size: float, ranks: float, stride: float) -> float:
        return self.rates.ring_us(size * (ranks - 1) / ranks / GIGA, ranks, stride=stride) if ranks > 1 else 0.0

    def _reduce_us(self) -> float:
        wide = 2.0 if self.recipe.knob("grad_reduce_in_fp32") is False else 4.0
        once = self._rings(wide) * (1.0 if self.sharded else 2.0)  # an all-reduce is a reduce-scatter and an all-gather
        if self.instances > 1:  # an all-reduce of each rank's shard
            own = self.dense / max(1.0, self.replicas) + self.experts / max(1.0, self.expert_replicas)
            once += 2.0 * self._ring(own * wide, self.instances, self.replicas * self.layout.tp)
        return once

    def _gather_us(self) -> float:
        return self._rings(1.0 if self.recipe.knob("fp8_param_gather") else 2.0) if self.sharded else 0.0

    def _in_passes(self) -> bool:
        strategy = self.recipe.knob("data_parallel_sharding_strategy")
        return bool(self.recipe.knob("use_megatron_fsdp") and strategy == "optim_grads_params")

    def _buckets(self) -> int:
        size = float(self.recipe.knob("bucket_size") or max(OWN_BUCKET, 1e6 * self.replicas))
        return max(1, min(MAX_BUCKETS, round((self.dense + self.experts) / size)))

    def _overlapped_share(self) -> float:
        """Returns the speed of DP traffic concurrent with compute, relative to its speed alone."""
        return max(1e-3, self.rates.values["overlap.dp"] * self.rates.machine.overlap.dp)

    def _lost(self, hidden_us: float) -> float:
        """Returns the compute time lost because hidden traffic occupied SMs, µs."""
        return self.rates.collective_sms() * self.rates.machine.overlap.sm_contention * max(0.0, hidden_us)

    def _gradients_left(self, whole_us: float, buckets: int) -> float:
        """Returns the gradient communication left when the last backward ends, plus the compute time that the hidden
        part costs by occupying SMs, µs."""
        if not whole_us or not self.recipe.knob("overlap_grad_reduce"):
            return whole_us
        passes = self._last_backwards()
        per_chunk = max(1, buckets // len(passes))
        ready = sorted(end - us * (1 - (k + 1) / per_chunk) for end, us in passes for k in range(per_chunk))
        each, speed, until, free = whole_us / len(ready), self._overlapped_share(), self.run.until_us(self.rank), 0.0
        for moment in ready:
            start = max(free, moment)
            concurrent_us = max(0.0, min(until - start, each / speed))
            free = start + concurrent_us + max(0.0, each - concurrent_us * speed)
        left = max(0.0, free - until)
        return left + self._lost(whole_us - left)

    def _last_backwards(self) -> list[tuple[float, float]]:
        """Returns (end, length) of the last backward of each chunk, µs from the start of the step."""
        found: dict[int, tuple[float, float]] = {}
        more = self.run.more_us
        for turn in self.run.turns[self.rank]:
            for one in turn.passes:
                if not one.forward:
                    found[one.chunk] = (turn.end_us + more, turn.end_us - turn.start_us)
        return list(found.values())

    def _parameters_left(self, whole_us: float, buckets: int) -> float:
        """Returns how long the first forward passes of the next step wait for parameters, plus the compute time that
        the hidden part of the gather costs by occupying SMs, µs."""
        if not whole_us or not self.recipe.knob("overlap_param_gather"):
            return whole_us
        moments = self._first_forwards(max(1, buckets // self.layout.vpp))
        each, speed = whole_us / (len(moments) - 1), self._overlapped_share()
        late = sent = 0.0
        for k, (moment, following) in enumerate(pairwise(moments), 1):
            late += max(0.0, k * each - sent)  # no compute is concurrent: this bucket has the whole link
            sent = min(whole_us, max(sent, k * each) + speed * (following - moment))
        return late + self._lost(whole_us - late)

    def _first_forwards(self, buckets: int) -> list[float]:
        """Returns when the first forward pass of each chunk needs each parameter bucket, and when the last of these
        passes ends."""
        turns, found, seen, end = self.run.turns[self.rank], list[float](), set[int](), 0.0
        for turn in turns:
            for one in turn.passes:
                if one.forward and one.chunk not in seen:
                    seen.add(one.chunk)
                    us = turn.end_us - turn.start_us
                    found += [turn.start_us - turns[0].start_us + us * k / buckets for k in range(buckets)]
                    end = turn.end_us - turns[0].start_us
        return [*sorted(found), end]

    def _optimizer_us(self) -> float:
        """Returns the time of the optimizer step, µs.

        Adam reads gradients, master weights and moments, and writes masters, moments and parameters.
        """
        recipe, rates = self.recipe, self.rates
        parameters = self.dense + self.experts
        if self.sharded:
            parameters = self.dense / max(1.0, self.replicas) + self.experts / max(1.0, self.expert_replicas)
        sizes = dict.fromkeys(("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype"), 4.0)
        if recipe.knob("use_precision_aware_optimizer"):
            sizes = {name: MASTER_BYTES[str(recipe.knob(name))] for name in sizes}
        gradients = sizes.pop("main_grads_dtype")
        size = parameters * (2 * sum(sizes.values()) + gradients + 2.0)
        on_host = float(recipe.knob("optimizer_offload_fraction")) if recipe.knob("optimizer_cpu_offload") else 0.0
        device = rates.optimizer_us((1 - on_host) * size)
        if not on_host:
            return device
        stepped = 1e6 * on_host * size / GIGA / rates.values["optimizer.host_rate"] * rates.machine.host.launch
        hidden = HIDDEN_COPIES if recipe.knob("overlap_cpu_optimizer_d2h_h2d") else 0.0
        copies = rates.copy_us(on_host * parameters * COPIED_BYTES / GIGA) / rates.values["optimizer.copies"]
        return device + stepped + (1 - hidden) * copies
