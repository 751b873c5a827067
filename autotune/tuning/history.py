"""Folds events into trials: the state of a study, rebuilt from its journal alone.

The loop folds each event as it is written, the report and a resumed run fold the file; both get the same trials.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import fields, replace
from functools import singledispatchmethod
from typing import Any

from autotune.tuning.events import (
    Analyzed,
    BurstFinished,
    BurstLost,
    BurstStarted,
    Ended,
    Event,
    Judged,
    LessonAdded,
    Probed,
    Proposed,
    Refused,
    StudyStarted,
    TunerStarted,
)
from autotune.units import gpu_or_rank
from policies.surrogate.lesson import Lesson
from policies.surrogate.links import lesson_of_links
from policies.trial import Phase, Prediction, Proposal, Status, Trial, Verdict, status_of
from trainer.burst import FailureKind, Outcome
from trainer.fidelity import Fidelity, full_size
from trainer.microbenchmarks.row import Row
from trainer.probe.links import Links
from trainer.recipe import Recipe
from trainer.recipe.launching import slurm_settings


class History:
    """A study, folded from its events. `trials` have a verdict; `attempted` also has the open one."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.study: StudyStarted | None = None
        self.tuner: TunerStarted | None = None  # the last run of the tuner
        self.ended: Ended | None = None
        self.completed = 0  # number of runs of the tuner that were not interrupted
        self.last_event_at = 0.0  # time of the last event, seconds since the epoch
        self.open_burst: BurstStarted | None = None
        self.pace_s: list[float] = []  # per burst: seconds since the previous one finished or the tuner started
        self.lessons: list[Lesson] = []
        self.probed: Probed | None = None  # the last measurement of the cluster before the first burst
        self.finished: list[BurstFinished] = []
        self.lost: list[BurstLost] = []
        self.lost_in_a_row = 0  # bursts lost since the last one that counts, or since the tuner ended
        self.proposals: dict[int, tuple[Proposal, Proposed]] = {}
        self.attempted: dict[int, Trial] = {}
        self._accepted: list[int] = []  # numbers of accepted trials, in the order of their verdicts
        self._changed: dict[int, int] = {}  # trial → number of knobs that differ from the recipe as given
        self._gpu_s = 0.0
        self._running: tuple[int, float] | None = None  # trial of the running burst, and its start
        self._between_s = 0.0  # seconds in which a tuner ran and no burst did
        self._no_burst_since: float | None = None  # None while a burst or no tuner runs
        for event in events:
            self.fold(event)

    @property
    def trials(self) -> list[Trial]:
        return [trial for trial in self.attempted.values() if trial.verdict is not None]

    @property
    def best(self) -> Trial | None:
        """Returns the last accepted trial that did not fail at full size later; None while nothing has run."""
        accepted = (self.attempted[number] for number in reversed(self._accepted))
        return next((trial for trial in accepted if not self._failed_at_full_size(trial)), None)

    @property
    def best_at_full_size(self) -> Trial | None:
        """Returns the last accepted trial whose bursts were at full size."""
        return next((self.attempted[n] for n in reversed(self._accepted) if self.attempted[n].fidelity is None), None)

    @property
    def reference(self) -> Trial | None:
        """Returns the trial that the speed-up is relative to: of the FIT trials that ran, at the best trial's size if
        possible, the one that differs from the base recipe in the fewest knobs (the base recipe if it runs). None while
        nothing has run."""
        best = self.best
        ran = [trial for trial in self.trials if trial.status is Status.OK and trial.proposal.phase is Phase.FIT]
        same = [trial for trial in ran if best is not None and trial.fidelity == best.fidelity] or ran
        return min(same, key=lambda trial: (self._changed[trial.number], trial.number), default=None)

    def at_full_size(self, recipe: Recipe) -> Trial | None:
        """Returns the trial that tried this recipe at full size; None if there is none.

        A base recipe too large for the launcher was not tried.
        """
        digest = recipe.digest()
        full = (trial for trial in self.attempted.values() if trial.fidelity is None and (trial.bursts or trial.number))
        return next((trial for trial in full if trial.recipe.digest() == digest), None)

    @property
    def fidelities(self) -> dict[Fidelity, float]:
        """Returns size → GPU-hours of the finished bursts, smallest size first."""
        found: dict[Fidelity, float] = {}
        for burst in self.finished:
            proposal = self.proposals[burst.trial][0]
            size = proposal.fidelity or full_size(proposal.recipe)
            found[size] = found.get(size, 0.0) + burst.gpu_s / 3600
        return dict(sorted(found.items()))

    @property
    def full_size(self) -> Fidelity | None:
        """Returns the size of the base recipe; None before it is proposed."""
        return full_size(self.proposals[0][0].recipe) if self.proposals else None

    @property
    def only_proxies(self) -> bool:
        """Returns whether only proxies of the best recipe ran."""
        return self.best is not None and self.best.fidelity is not None

    @property
    def links(self) -> Links | None:
        """Returns the links between the nodes, as measured before the first burst; None without a probe."""
        return self.probed.links if self.probed else None

    @property
    def rows(self) -> tuple[Row, ...]:
        """Returns the rows of the probe before the first burst."""
        return self.probed.rows if self.probed else ()

    @property
    def simulated(self) -> bool:
        """Returns whether the engine is `simulated`: no figure of the study was measured."""
        return self.study is not None and Recipe.model_validate(self.study.recipe).burst.engine == "simulated"

    @property
    def gpu_hours(self) -> float:
        """Returns the GPU-hours of the probe and of all bursts, including failed, lost and interrupted ones: as the
        engine reported, else by the journal's timestamps. Simulated hours for a simulated study."""
        return self._gpu_s / 3600

    @property
    def idle_gpu_hours(self) -> float:
        """Returns the GPU-hours that a Slurm allocation was idle while the tuner decided, not part of `gpu_hours`; 0 if
        no allocation holds the GPUs between bursts."""
        if self.study is None:
            return 0.0
        recipe = Recipe.model_validate(self.study.recipe)
        held = recipe.burst.launcher_kind == "slurm" or (self.tuner is not None and self.tuner.job is not None)
        if not held or self.simulated or slurm_settings(recipe.burst.launcher).job == "per-burst":
            return 0.0
        return max(0.0, self._between_s) * recipe.world_size / 3600

    @property
    def unit(self) -> str:
        """Returns the unit of throughput and cost: `GPU`, or `rank` if the recipe runs on CPUs."""
        return gpu_or_rank(self.study.recipe["cluster"]["gpu"] if self.study is not None else "")

    def copy(self) -> History:
        """Copies the history, so that its trials can be judged without changing this one."""
        found = copy(self)
        found.attempted, found._accepted = dict(self.attempted), list(self._accepted)
        return found

    def judge_provisionally(self, event: Judged) -> None:
        """Folds a verdict on an open trial that no journal records."""
        self._fold(event)
        self._update(event.trial, provisional=True)

    def fold(self, event: Event) -> None:
        """Folds one event."""
        self._fold(event)
        self.last_event_at = max(self.last_event_at, event.at)

    @singledispatchmethod
    def _fold(self, event: Event) -> None:
        """Updates the state for one type of event; types without a handler change nothing."""

    @_fold.register
    def _(self, event: StudyStarted) -> None:
        self.study = event

    @_fold.register
    def _(self, event: TunerStarted) -> None:
        self.tuner = event
        self.ended = None
        self._no_burst_since = event.at

    @_fold.register
    def _(self, event: LessonAdded) -> None:
        lesson = Lesson(study=event.study, trials=event.trials, mean=event.mean, deviation=event.deviation)
        self.lessons.append(lesson)

    @_fold.register
    def _(self, event: Probed) -> None:
        self._gpu_s += event.ranks * event.seconds
        self._between_s -= event.seconds
        self.probed = event
        assert self.study is not None
        recipe = Recipe.model_validate(self.study.recipe)
        if event.links is not None and not event.rows and (lesson := lesson_of_links(event.links, recipe)) is not None:
            self.lessons.append(lesson)

    @_fold.register
    def _(self, event: Proposed) -> None:
        self.ended = None
        predicted = Prediction(**{field.name: getattr(event, field.name) for field in fields(Prediction)})
        proposal = Proposal(
            recipe=Recipe.model_validate(event.recipe),
            parent=event.parent,
            phase=event.phase,
            fix=event.fix,
            because=event.because,
            reason=event.reason,
            fixes=event.fixes,
            interaction=event.interaction,
            predicted=predicted,
            fidelity=event.fidelity,
        )
        self.proposals[event.trial] = (proposal, event)
        self._changed[event.trial] = len(self.proposals[0][0].recipe.diff(proposal.recipe))

    @_fold.register
    def _(self, event: BurstStarted) -> None:
        self.ended = None
        self.open_burst = event
        self._running = event.trial, event.at
        self._end_gap(event.at)

    @_fold.register
    def _(self, event: BurstLost) -> None:
        self.lost.append(event)
        self.lost_in_a_row += 1
        known = event.cost_s if event.cost_s is not None else event.seconds
        self._stop_running(event.at, seconds=known)
        self._running = event.trial, event.at  # the burst runs again

    @_fold.register
    def _(self, event: Refused) -> None:
        self._add_outcome(event.trial, (), event.outcome)

    @_fold.register
    def _(self, event: BurstFinished) -> None:
        self.pace_s.append(max(0.0, event.at - self._resumed_at))
        self.finished.append(event)
        self._running = self.open_burst = None
        self._no_burst_since = event.at
        failure = event.outcome.failure
        if failure is None or failure.kind is not FailureKind.INFRASTRUCTURE:  # counted in `BurstLost` already
            self._gpu_s += event.gpu_s
            self.lost_in_a_row = 0
        self._add_outcome(event.trial, (event.burst,), event.outcome)

    @_fold.register
    def _(self, event: Analyzed) -> None:
        self._update(event.trial, analysis=event.analysis)

    @_fold.register
    def _(self, event: Judged) -> None:
        self._update(
            event.trial,
            status=event.status,
            verdict=event.verdict,
            verdict_reason=event.reason,
            verdict_because=event.because,
            provisional=False,
        )
        if event.verdict is Verdict.ACCEPTED:
            self._accepted.append(event.trial)

    @_fold.register
    def _(self, event: Ended) -> None:
        self.ended = event
        self.completed += event.status != "interrupted"
        self.lost_in_a_row = 0
        self._stop_running(event.at)
        self._end_gap(event.at)

    @property
    def _resumed_at(self) -> float:
        """Returns the start of this burst, proposal time included."""
        started = self.tuner.at if self.tuner else self.study.at if self.study else 0.0
        return max(started, self.finished[-1].at if self.finished else 0.0)

    def _end_gap(self, at: float) -> None:
        """Adds the time since a burst ended or the tuner started to the time without a burst."""
        if self._no_burst_since is not None:
            self._between_s += max(0.0, at - self._no_burst_since)
        self._no_burst_since = None

    def _stop_running(self, at: float, seconds: float | None = None) -> None:
        """Adds the running burst to the cost: `seconds`, or if None the time since its start, at most its deadline."""
        if self._running is None:
            return
        trial, since = self._running
        recipe = self.proposals[trial][0].ran
        if seconds is None:
            seconds = min(max(0.0, at - since), recipe.burst.deadline_s)
        self._gpu_s += seconds * recipe.world_size
        self._running = None

    def _add_outcome(self, number: int, bursts: tuple[int, ...], outcome: Outcome) -> None:
        known = self.attempted.get(number)
        if known is None:
            proposal, event = self.proposals[number]
            self.attempted[number] = Trial(
                number=number,
                proposal=proposal,
                changes={knob: (_frozen(a), _frozen(b)) for knob, (a, b) in event.changes.items()},
                bursts=bursts,
                outcomes=(outcome,),
                status=status_of(outcome),
            )
        else:
            worst = known.status if known.verdict or outcome.ok else status_of(outcome)
            self._update(number, bursts=known.bursts + bursts, outcomes=(*known.outcomes, outcome), status=worst)

    def _failed_at_full_size(self, trial: Trial) -> bool:
        if trial.fidelity is None:
            return False
        full = self.at_full_size(trial.recipe)
        return full is not None and full.status not in (Status.OK, Status.NOOP)

    def _update(self, number: int, **fields: Any) -> None:
        self.attempted[number] = replace(self.attempted[number], **fields)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
