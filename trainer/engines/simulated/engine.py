"""Runs bursts on the simulated cluster: a recipe in, an outcome and a run folder out, no process started."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import median

from trainer.burst import Burst, BurstPhase, Failure, FailureKind, Outcome, write_burst, write_outcome
from trainer.engines.simulated.model import step_of
from trainer.engines.simulated.play import Step, play
from trainer.engines.simulated.trace import write_trace
from trainer.estimate.memory.estimate import estimate_memory
from trainer.model.flops import model_flops_per_token
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine

# Up to which part a burst has come when the parts before it alone no longer fit.
PHASES_BY_PART = (
    (BurstPhase.INIT, ("weights", "gradients", "buffers")),
    (BurstPhase.FORWARD, ("activations",)),
    (BurstPhase.OPTIMIZER, ("master_weights", "optimizer")),
)


class SimulatedEngine:
    """See `trainer.engines.Engine`. The same burst (recipe, number, seed) gives the same outcome."""

    def __init__(self, state_dir: Path, *, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        self._warm = False

    def run(self, burst: Burst) -> Outcome:
        write_burst(burst)
        step = play(step_of(burst.recipe, self._machine))
        outcome = self._outcome(burst, step)
        if outcome.ok and burst.recipe.burst.trace_steps:
            _write_traces(burst, step)
        _write_log(burst, outcome)
        write_outcome(burst.folder, outcome)
        self._warm = outcome.ok
        return outcome

    def close(self) -> None:
        """Nothing was started."""

    def _outcome(self, burst: Burst, step: Step) -> Outcome:
        recipe, settings = burst.recipe, burst.recipe.burst
        peak_gib, failure = self._memory(recipe)
        if failure:
            return Outcome(failure=failure, ranks=recipe.world_size, limit_gib=recipe.memory_limit_gib)
        dice = random.Random(f"{recipe.digest()} {burst.number} {burst.seed}")
        level = step.duration_us * math.exp(dice.gauss(0.0, self._machine.burst_noise))
        steps = [level * math.exp(dice.gauss(0.0, self._machine.noise)) for _ in range(settings.measure_steps)]
        tokens = recipe.training.global_batch_size * recipe.training.seq_length
        rate = tokens / (median(steps) / 1e6) / recipe.world_size
        flops = model_flops_per_token(recipe.architecture, recipe.training.seq_length)
        return Outcome(
            step_us=steps,
            cpu_us=[0.0] * len(steps),  # no process ran
            loss=_losses(recipe, settings.warmup_steps + settings.measure_steps),
            peak_gib=[peak_gib] * recipe.world_size,
            limit_gib=recipe.memory_limit_gib,
            tokens_per_step=tokens,
            ranks=recipe.world_size,
            tokens_per_s_per_gpu=rate,
            model_tflops_per_gpu=rate * flops / 1e12,
            attainable_tflops_per_gpu=self._machine.tflops(recipe),
            warm=self._warm,
            warnings=["simulated: nothing was trained, figures come from an uncalibrated model"],
        )

    def _memory(self, recipe: Recipe) -> tuple[float, Failure | None]:
        """Peak of the hottest rank, and the failure when it is above the limit."""
        machine = self._machine
        estimate = estimate_memory(recipe)
        peak = estimate.peak_gib * machine.memory_scale + machine.memory_offset_gib
        limit = recipe.memory_limit_gib
        if limit is None or peak <= limit:
            return peak, None
        needed = machine.memory_offset_gib
        phase = BurstPhase.BACKWARD
        for reached, parts in PHASES_BY_PART:
            needed += machine.memory_scale * sum(estimate.by_part.get(part, 0.0) for part in parts)
            if needed > limit:
                phase = reached
                break
        evidence = f"simulated: out of memory, {peak:.2f} GiB needed of {limit:.2f} GiB"
        return peak, Failure(kind=FailureKind.OOM, phase=phase, rank=0, evidence=evidence)


def _losses(recipe: Recipe, steps: int) -> list[float]:
    """One curve for all layouts of a model; precision moves it a little."""
    start = math.log(recipe.architecture.vocab_size)
    shift = 0.0 if recipe.training.precision in ("fp32", "bf16") else 0.002
    return [start * (0.7 + 0.3 * math.exp(-0.05 * step)) * (1.0 + shift) for step in range(steps)]


def _write_traces(burst: Burst, step: Step) -> None:
    """Of the first and the last rank; the others would read the same."""
    world_size = burst.recipe.world_size
    settings = burst.recipe.burst
    for rank in sorted({0, world_size - 1}):
        write_trace(
            burst.folder / "trace" / f"rank{rank}.pt.trace.json.gz",
            step,
            rank=rank,
            world_size=world_size,
            steps=settings.trace_steps,
            first=settings.warmup_steps + settings.measure_steps,
        )


def _write_log(burst: Burst, outcome: Outcome) -> None:
    folder = burst.folder / "log"
    folder.mkdir(parents=True, exist_ok=True)
    text = outcome.failure.evidence if outcome.failure else outcome.warnings[0]
    (folder / "rank0.log").write_text(text + "\n", encoding="utf-8")
