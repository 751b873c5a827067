"""Fakes for the tuning loop: an engine with planted step times, and a policy with a prepared list of proposals."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzers.diagnosis import Analysis, Diagnosis, Wall
from autotune.tuning.bench import Bench
from autotune.tuning.events import Event, StudyStarted
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, Journal, read_study
from autotune.tuning.loop import Loop
from policies.reason import Reason, ReasonKind
from policies.trial import Phase, Prediction, Proposal, Trial
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.rules import check

Rule = Callable[[Recipe], Outcome | float]  # the result of a burst of a recipe: an outcome, or its step time in us

STEPS = 8
PLANTED = Reason(
    kind=ReasonKind.EXPECTED_IMPROVEMENT,
    figures={
        "wall": None,
        "parts": {},
        "gain": 0.2,
        "gain_low": 0.1,
        "gain_high": 0.3,
        "fits_probability": 0.9,
        "learned": {"trials": 1, "traced": 0, "lessons": []},
    },
)
NO_IDEAS = Reason(kind=ReasonKind.NOTHING_LEFT, figures={"patience": None, "noise": 0.02})


def base_recipe(**changes: Any) -> Recipe:
    return load_recipe("cpu-moe").replace(changes)


def outcome_of(step_us: float, *, spread: float = 0.001, rng: random.Random | None = None, **fields: Any) -> Outcome:
    """Returns an outcome whose steps are around `step_us` with that relative spread."""
    rng = rng or random.Random(int(step_us))
    steps = [step_us * (1 + rng.uniform(-spread, spread)) for _ in range(STEPS)]
    known: dict[str, Any] = {"tokens_per_step": 2048, "ranks": 2, "loss": [7.0, 6.9], "peak_gib": [1.0, 1.1], **fields}
    return Outcome(step_us=steps, tokens_per_s_per_gpu=2048 / (step_us / 1e6) / 2, **known)


def analysis_of(wall: Wall = Wall.HOST) -> Analysis:
    return Analysis(diagnosis=Diagnosis(wall=wall, margin=0.4, because="planted"), traces=[])


@dataclass
class FakeEngine:
    """Engine whose outcomes `rule` gives, the same for the same recipe and burst number; it records what was run."""

    rule: Rule
    ran: list[Burst] = field(default_factory=list)
    closed: bool = False

    def run(self, burst: Burst) -> Outcome:
        self.ran.append(burst)
        burst.folder.mkdir(parents=True)
        given = self.rule(burst.recipe)
        if isinstance(given, Outcome):
            return given
        return outcome_of(given, rng=random.Random(f"{burst.recipe.digest()} {burst.number}"))

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, kw_only=True)
class Idea:
    """One prepared proposal: tried in its phase, once, on top of the best."""

    changes: dict[str, Any]
    phase: Phase = Phase.PROFILE
    fix: str = "planted"
    bound: float | None = None
    predicted: Prediction | None = None
    when: Callable[[Recipe], bool] = lambda best: True


@dataclass
class FakePolicy:
    """Proposes its ideas in order, each in its phase, none twice; pure, as a policy has to be."""

    ideas: Sequence[Idea]
    nearest: Mapping[str, Any] | None = None  # changes that make the recipe as given run

    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        tried = [{knob: new for knob, (_, new) in trial.changes.items()} for trial in trials]
        for idea in self.ideas:
            if idea.phase is phase and idea.changes not in tried and idea.when(incumbent.recipe):
                return Proposal(
                    recipe=incumbent.recipe.replace(idea.changes),
                    parent=incumbent.number,
                    phase=phase,
                    fix=idea.fix,
                    reason=PLANTED,
                    predicted=idea.predicted or Prediction(gain_bound=idea.bound),
                )
        return None

    def knowledge(self, incumbent: Trial, trials: Sequence[Trial]) -> None:
        return None

    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        if self.nearest is None:
            return None
        return Proposal(
            recipe=given.recipe.replace(dict(self.nearest)),
            parent=given.number,
            phase=Phase.FIT,
            fix="planted",
            reason=PLANTED,
        )

    def why_stopped(self, incumbent: Trial, trials: Sequence[Trial]) -> Reason:
        return NO_IDEAS


def loop_in(
    folder: Path,
    *,
    rule: Rule,
    ideas: Sequence[Idea] = (),
    budget: int = 20,
    patience: int = 5,
    base: Recipe | None = None,
    engine: FakeEngine | None = None,
    nearest: Mapping[str, Any] | None = None,
    max_gpu_hours: float | None = None,
    until: float | None = None,
    listener: Callable[[Event, History], None] = lambda event, history: None,
) -> Loop:
    """Returns a loop on fakes whose study is in `folder`; a second one in the same folder resumes the first."""
    ticks = iter(range(1_000_000))

    def clock() -> float:
        return float(next(ticks))

    recipe = base or base_recipe()
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / JOURNAL, clock=clock, listener=listener)
    started = StudyStarted(
        version="0", name="fake", recipe=recipe.model_dump(mode="json"), digest="0", seed=1234, environment={}
    )
    journal.replay_or_append(StudyStarted, lambda: started)
    bench = Bench(
        journal=journal,
        engine=engine or FakeEngine(rule),
        bursts=folder / "bursts",
        budget=budget,
        seed=1234,
        check=check,
        analyze=lambda paths: analysis_of(),
        clock=clock,
        max_gpu_hours=max_gpu_hours,
        until=until,
    )
    return Loop(base=recipe, policy=FakePolicy(ideas, nearest), bench=bench, patience=patience)


def trials_in(folder: Path) -> list[Trial]:
    return read_study(folder).trials


class Killed(BaseException):
    """Plays SIGKILL: no handler of the loop catches it."""


def dies_after(events: int) -> Callable[[Event, History], None]:
    """Returns a listener that kills its study right after so many events were written."""
    left = iter(range(events - 1))

    def die(event: Event, history: History) -> None:
        if next(left, None) is None:
            raise Killed

    return die


def measured(trials: Sequence[Trial]) -> list[object]:
    return [(trial.number, trial.changes, trial.bursts, trial.outcomes, trial.verdict_reason) for trial in trials]


OOM = Outcome(failure=Failure(kind=FailureKind.OOM, rank=1, evidence="std::bad_alloc"), ranks=2)
FASTER = Idea(changes={"micro_batch_size": 4})
SLOWER = Idea(changes={"manual_gc": True})


def micro_batches(recipe: Recipe) -> float:
    """Returns the step time of a planted truth: fewer micro batches cost less, manual garbage collection more."""
    return 100_000 / int(recipe.knob("micro_batch_size")) * (1.5 if recipe.knob("manual_gc") else 1.0)
