"""The input by which a fix decides whether it applies: a recipe, the outcome of its burst, the diagnosis of its trace.

The policy makes it from a trial; fixes only read it. Times are microseconds of an average step on the slowest rank,
memory is GiB per rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analyzers.diagnosis import Analysis, Partition, Wall
from policies.trial import Trial
from trainer.burst import Failure, Outcome
from trainer.recipe import Recipe

# lost time that the analyzers name and that is not part of a wall
BUBBLE_PART, LOAD_PART, STAGES_PART = "bubble", "experts_load", "uneven_stages"
PIPELINE_CAUSES = (BUBBLE_PART, STAGES_PART)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A recipe with the evidence about it. `outcome` is None before anything ran, `analysis` without a trace."""

    recipe: Recipe
    analysis: Analysis | None = None
    outcome: Outcome | None = None

    def knob(self, name: str) -> Any:
        return self.recipe.knob(name)

    @property
    def is_moe(self) -> bool:
        return self.recipe.architecture.num_moe_experts is not None

    @property
    def on_cpu(self) -> bool:
        return self.recipe.hardware.is_cpu

    def oversubscribes(self, recipe: Recipe) -> bool:
        """Returns true if the ranks of a recipe would compute with more threads than they have cores; false if the
        number of cores is not known."""
        cores = self.outcome.cores_per_rank if self.outcome else None
        return cores is not None and recipe.knob("threads_per_rank") > max(cores, 1)

    @property
    def failure(self) -> Failure | None:
        return self.outcome.failure if self.outcome else None

    @property
    def limit_gib(self) -> float | None:
        """Returns the memory limit of a rank: that of the burst, else the recipe's."""
        measured = self.outcome.limit_gib if self.outcome else None
        return measured if measured is not None else self.recipe.memory_limit_gib

    @property
    def peak_gib(self) -> float | None:
        """Returns the peak of the hottest rank, None if nothing was measured."""
        if self.outcome is None or not self.outcome.ok or not self.outcome.peak_gib:
            return None
        return max(self.outcome.peak_gib)

    @property
    def step_us(self) -> float:
        """Returns the traced step time of which the walls are shares; 0 without a trace."""
        findings = self.analysis.diagnosis.walls if self.analysis else []
        measured = next(
            (wall.recoverable_us / wall.share for wall in findings if wall.share and wall.recoverable_us), None
        )
        return measured or max(
            (_mean([step.duration_us for step in steps]) for steps in self.traced_steps), default=0.0
        )

    def lost_us(self, cause: str) -> float:
        """Returns the time that an average step loses to a cause, by its name, whatever the verdict names; 0 if no
        trace shows it."""
        diagnosis = self.analysis.diagnosis if self.analysis else None
        if diagnosis is None:
            return 0.0
        named = diagnosis.cause.lost_us if diagnosis.cause is not None and diagnosis.cause.name == cause else 0.0
        return max(named, diagnosis.waits.get(cause, 0.0))

    @property
    def losses_outside_walls(self) -> dict[str, float]:
        """Returns losses outside the walls that fixes may act on: bubble, uneven experts' load, uneven stages."""
        bubble_us = max([self._idle_bubble_us, *map(self.lost_us, PIPELINE_CAUSES)])
        return {BUBBLE_PART: bubble_us, **{part: self.lost_us(part) for part in (LOAD_PART, STAGES_PART)}}

    @property
    def _idle_bubble_us(self) -> float:
        """Returns the time per average step that a rank is idle with a pipeline receive pending; the maximum over
        ranks."""
        waits = ([step.idle_by_cause.bubble_us for step in steps] for steps in self.traced_steps)
        return max(map(_mean, waits), default=0.0)

    def recoverable_us(self, wall: Wall, parts: tuple[str, ...] = ()) -> float:
        """Returns the most time that `parts` could give back: parts of the wall, or losses outside the walls. Without
        `parts`, that of the whole wall."""
        finding = self.analysis.diagnosis.finding(wall) if self.analysis else None
        if finding is None:
            return 0.0
        if not parts:
            return finding.recoverable_us
        known = finding.parts | self.losses_outside_walls
        return sum(known.get(part, 0.0) for part in parts)

    @property
    def traced_steps(self) -> list[list[Partition]]:
        """Returns the steps of each trace (one trace per rank); the whole span of a trace without step markers."""
        if self.analysis is None:
            return []
        return [trace.steps or [trace.span] for trace in self.analysis.traces]


def situation_of(trial: Trial) -> Situation:
    """Returns the situation of a trial: from its last burst that gave figures, else from its last burst."""
    measured = [outcome for outcome in trial.outcomes if outcome.ok]
    last = measured or list(trial.outcomes)
    return Situation(recipe=trial.recipe, analysis=trial.analysis, outcome=last[-1] if last else None)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True, kw_only=True)
class Measure:
    words: str
    unit: str
    read: Callable[[Partition], float]

    def of(self, situation: Situation) -> float | None:
        """Returns the measure's average over the traced steps, of the rank where it is largest; None without a
        trace."""
        by_rank = [[self.read(step) for step in steps] for steps in situation.traced_steps]
        return max((sum(values) / len(values) for values in by_rank if values), default=None)

    def floor(self, situation: Situation) -> float:
        """Returns the value below which the measure is too small to prove anything: 0.5 % of the step."""
        return 0.005 * situation.step_us


def exposed(*kinds: str) -> Callable[[Partition], float]:
    return lambda step: sum(time.exposed_us for kind, time in step.communication_by_kind.items() if kind in kinds)


def busy(*kinds: str) -> Callable[[Partition], float]:
    return lambda step: sum(time.busy_us for kind, time in step.communication_by_kind.items() if kind in kinds)


EP_KINDS = ("ep_dispatch", "ep_combine", "ep_notify", "all_to_all")

MEASURES: dict[str, Measure] = {
    "recompute": Measure(words="time inside recompute", unit="us", read=lambda step: step.recompute_us),
    "ep_exposed": Measure(words="exposed EP communication", unit="us", read=exposed(*EP_KINDS)),
    "ep_busy": Measure(words="EP communication", unit="us", read=busy(*EP_KINDS)),
    "tp_exposed": Measure(words="exposed TP communication", unit="us", read=exposed("tp")),
    "tp_busy": Measure(words="TP communication", unit="us", read=busy("tp")),
    "cp_busy": Measure(words="CP communication", unit="us", read=busy("cp")),
    "pp_busy": Measure(words="PP send/recv", unit="us", read=busy("pp")),
    "dp_exposed": Measure(words="exposed DP communication", unit="us", read=exposed("dp")),
    "host_idle": Measure(
        words="idle time waiting for the host", unit="us", read=lambda step: step.idle_by_cause.host_us
    ),
    "compute": Measure(words="compute time", unit="us", read=lambda step: step.compute_us),
    "copy": Measure(words="copies", unit="us", read=lambda step: step.copy_us),
}
