"""Engine `simulated`: simulates bursts on a cluster, and returns an outcome and a run folder like other engines."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from trainer.burst import Burst, BurstPhase, Failure, FailureKind, Outcome, write_burst, write_outcome
from trainer.engines.simulated.memory import SimulatedMemory, simulate_memory
from trainer.engines.simulated.recording import Recorder
from trainer.engines.simulated.step import Simulation
from trainer.engines.simulated.trace import write_trace
from trainer.model.flops import model_flops_per_token
from trainer.recipe.machine import Fault, Machine

US = 1e6
SIMULATED = "simulated: nothing was trained, every figure comes from a model of the cluster {}"
LOG_LINES = {  # by fault, the failure and the line that a log would show
    "dies": (FailureKind.CRASH, "rank {rank} died in step {step}: exit code -11 (SIGSEGV)"),
    "hangs": (FailureKind.HANG, "rank {rank} hung in step {step}; its peers waited in a collective"),
    "nan": (FailureKind.NAN, "rank {rank}: loss is nan in step {step}"),
    "node_lost": (FailureKind.INFRASTRUCTURE, "the node of rank {rank} was lost in step {step}"),
}


class SimulatedEngine:
    """Engine that simulates a cluster; `trainer.engines.Engine` documents its methods.

    Deterministic: the same burst (recipe, number, seed) measures the same. Only its start-up cost depends on the burst
    before, and its faults on whether it is a retry.
    """

    def __init__(self, state_dir: Path) -> None:
        self._nodes: int | None = None  # nodes of the ranks that wait for the next burst

    def run(self, burst: Burst) -> Outcome:
        write_burst(burst)
        simulated = _Burst(burst, warm=self._nodes == burst.recipe.cluster.nodes)
        outcome = simulated.outcome()
        if outcome.ok and burst.recipe.burst.trace_steps:
            simulated.write_traces()
        _write_log(burst, outcome)
        write_outcome(burst.folder, outcome)
        self._nodes = burst.recipe.cluster.nodes if outcome.ok else None
        return outcome

    def close(self) -> None:
        """Does nothing: nothing was started."""


@dataclass(frozen=True, kw_only=True)
class _Stopped:
    """The early end of a burst: its failure, and the number of steps before it."""

    failure: Failure
    steps: float


class _Burst:
    """One burst while it is simulated.

    Noise is drawn from its recipe, number and seed; faults are drawn anew for a retry, the same for every retry.
    """

    def __init__(self, burst: Burst, *, warm: bool) -> None:
        self.burst, self.warm, self.recipe = burst, warm, burst.recipe
        self.machine = burst.recipe.burst.machine or Machine()
        settings = self.recipe.burst
        self.steps = settings.warmup_steps + settings.measure_steps
        self.simulation = Simulation(self.recipe, self.machine, steps=self.steps)
        self.memory = memory_of(self.simulation)
        drawn = f"{self.recipe.digest()} {burst.number} {burst.seed}"
        again = (burst.folder / "outcome.json").exists()  # true if a lost burst is retried
        self.noise_rng, self.fault_rng = random.Random(drawn), random.Random(f"{drawn} {again}")

    def outcome(self) -> Outcome:
        recipe, limit, world = self.recipe, self.recipe.memory_limit_gib, self.recipe.world_size
        stopped = self._out_of_memory() or self._fault()
        startup_s, setup_s = self._startup_s(), self._setup_s()
        if stopped:
            cost = startup_s + setup_s + self._steps_s(stopped.steps, failed=stopped.failure)
            warnings = [SIMULATED.format(self.machine.name)]
            return Outcome(
                failure=stopped.failure,
                outside_gib=self._outside_gib(),
                ranks=world,
                limit_gib=limit,
                cost_s=cost,
                simulated=True,
                warnings=warnings,
            )
        step_us = self._step_us()
        tokens = recipe.training.tokens_per_step
        rate = tokens / (median(step_us) / US) / world
        flops = model_flops_per_token(recipe.architecture, recipe.training.seq_length)
        return Outcome(
            step_us=step_us,
            cpu_us=[0.0] * len(step_us),  # no process ran
            peak_gib=self._peaks_gib(),
            outside_gib=self._outside_gib(),
            limit_gib=limit,
            tokens_per_step=tokens,
            ranks=world,
            tokens_per_s_per_gpu=rate,
            model_tflops_per_gpu=rate * flops / 1e12,
            attainable_tflops_per_gpu=self.simulation.rates.attainable_tflops,
            startup_s=startup_s,
            setup_s=setup_s,
            cost_s=startup_s + setup_s + self._steps_s(self.steps + recipe.burst.trace_steps),
            simulated=True,
            warm=self.warm,
            warnings=[SIMULATED.format(self.machine.name)],
        )

    def _step_us(self) -> list[float]:
        """Returns the measured steps, µs, with noise of the burst and of each step, and with drifting expert loads."""
        noise = self.machine.noise
        level = self.simulation.step_us * math.exp(self.noise_rng.gauss(0.0, noise.burst))
        drifting = self.simulation.routing.drifting[self.recipe.burst.warmup_steps :]
        slope = self.simulation.load_slope
        return [
            level * (1 + slope * (float(load) - 1)) * math.exp(self.noise_rng.gauss(0.0, noise.step))
            for load in drifting
        ]

    def _peaks_gib(self) -> list[float]:
        each = self.recipe.world_size // len(self.memory.peak_gib)
        return [peak for peak in self.memory.peak_gib for _ in range(each)]

    def _outside_gib(self) -> list[float]:
        """Returns the memory outside the allocator by rank, as real ranks report it; [] on CPUs."""
        return [] if self.recipe.hardware.is_cpu else [self.memory.outside_gib] * self.recipe.world_size

    def _out_of_memory(self) -> _Stopped | None:
        limit = self.recipe.memory_limit_gib
        found = self.memory.out_of_memory(limit) if limit is not None else None
        if found is None:
            return None
        phase, place, step, needed = found
        evidence = (
            f"simulated: torch.OutOfMemoryError in step {step}: {needed:.2f} GiB needed of {limit:.2f} GiB, "
            f"{self.memory.outside_gib:.2f} of them outside the allocator"
        )
        rank = place * (self.recipe.world_size // len(self.memory.peak_gib))
        failure = Failure(kind=FailureKind.OOM, phase=phase, rank=rank, evidence=evidence)
        return _Stopped(failure=failure, steps=0.0 if phase is BurstPhase.INIT else step + 0.5)

    def _fault(self) -> _Stopped | None:
        for fault in self.machine.faults:
            drawn = self.fault_rng.random()
            meets = fault.bursts is None or self.burst.number < fault.bursts
            if meets and drawn < fault.chance and fault.step < self.steps and fault.rank < self.recipe.world_size:
                return _Stopped(failure=_failure(fault), steps=float(fault.step + 1))
        return None

    def _startup_s(self) -> float:
        startup = self.machine.startup
        return 0.0 if self.warm else startup.launch_s + startup.per_1024_ranks_s * self.recipe.world_size / 1024

    def _setup_s(self) -> float:
        return self.machine.startup.build_s_per_gib * max(self.memory.state_gib)

    def _steps_s(self, steps: float, *, failed: Failure | None = None) -> float:
        """Returns the duration of the steps, s; a hang lasts until the deadline."""
        if failed and failed.kind is FailureKind.HANG:
            return self.recipe.burst.deadline_s
        first = self.machine.startup.first_step_s if steps else 0.0
        return first + steps * self.simulation.step_us / US

    def write_traces(self) -> None:
        """Writes the traces of the first rank, the last rank and up to two late ranks."""
        recipe = self.recipe
        for rank in self.traced_ranks():
            write_trace(
                self.burst.folder / "trace" / f"rank{rank}.pt.trace.json.gz",
                Recorder(self.simulation, rank).step(),
                rank=rank,
                world_size=recipe.world_size,
                number=self.steps,
                gpu=recipe.cluster.gpu_name,
            )

    def traced_ranks(self) -> list[int]:
        world = self.recipe.world_size
        return sorted({0, world - 1, *self.simulation.late_ranks[:2]})


def memory_of(simulation: Simulation) -> SimulatedMemory:
    """Returns the memory of a recipe for the hottest EP rank of every stage, at the average load over its layers."""
    own = simulation.routing.own
    layers = [[layer for stage in rank for layer in stage.layers] for rank in simulation.stages]
    loads = [float(own[of_rank].mean(axis=0).max()) if of_rank else 1.0 for of_rank in layers]
    return simulate_memory(simulation.recipe, simulation.machine, imbalance=loads)


def _failure(fault: Fault) -> Failure:
    kind, words = LOG_LINES[fault.kind]
    evidence = "simulated: " + words.format(rank=fault.rank, step=fault.step)
    return Failure(kind=kind, phase=BurstPhase.FORWARD, rank=fault.rank, evidence=evidence)


def _write_log(burst: Burst, outcome: Outcome) -> None:
    folder = burst.folder / "log"
    folder.mkdir(parents=True, exist_ok=True)
    text = outcome.failure.evidence if outcome.failure else outcome.warnings[0]
    (folder / "rank0.log").write_text(text + "\n", encoding="utf-8")
