"""The tuning loop: for each phase propose, attempt, judge, and keep the better trial.

A pass goes through all phases. After a pass that tried something, the next starts at `scale`, because a later phase may
have freed memory or improved the surrogate. Then reference and best are measured again, interleaved, which may improve
the noise estimate enough for another pass. The policy chooses recipes, the judge compares them, the loop decides when
to stop. At the end, an ablation (`autotune.tuning.ablation`) spends the bursts that were kept for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from autotune.tuning.ablation import AblationRun
from autotune.tuning.bench import Bench
from autotune.tuning.effect import no_effect
from autotune.tuning.events import AblationStarted, Ended, Proposed
from autotune.tuning.full_size import FullSize, Sizing, is_at_full_size
from autotune.tuning.history import History
from autotune.tuning.journal import OtherStepError
from autotune.tuning.judge import Judgement, judge
from autotune.tuning.speedup import speedup, throughput_ratio
from autotune.units import gpu_or_rank
from policies.ablation.ablation import ablation_of
from policies.candidates.knowledge import Knowledge
from policies.noise import Noise
from policies.reason import Reason, ReasonKind
from policies.search.avoid import without_gain
from policies.trial import PHASES, ChangeShare, Phase, Proposal, Status, Trial, Verdict
from trainer.recipe import Recipe

LATER_PASSES = PHASES[PHASES.index(Phase.SCALE) :]
MAX_PAIRS = 3  # interleaved pairs of bursts that confirm a comparison
MAX_RECONSIDERED = 2  # inconclusive trials that are measured again
MAX_HALF_WIDTH = 0.03  # half width of the speed-up's interval, relative to the speed-up


class Adviser(Protocol):
    """The policy that the loop asks. All methods are pure: the same trials give the same answer, also on resume."""

    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None: ...

    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        """Returns the proposal that may run with the fewest changes to `given`, a trial that did not run; None if there
        is none."""
        ...

    def why_stopped(self, incumbent: Trial, trials: Sequence[Trial]) -> Reason:
        """Returns the reason why no proposal is left."""
        ...

    def knowledge(self, incumbent: Trial, trials: Sequence[Trial]) -> Knowledge | None:
        """Returns what is known about changes of the incumbent, for its ablation; None if nothing is."""
        ...


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The state after the last confirming bursts: whether the reference is known, and the number of the last confirmed
    best trial."""

    reference: bool = False
    confirmed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One tuning run.

    `patience`: proposals in a row that may fail to gain; `sizing`: None if the study uses no proxies. The bursts that
    the bench reserves are for the ablation.
    """

    base: Recipe
    policy: Adviser
    bench: Bench
    patience: int
    sizing: Sizing | None = None

    def run(self) -> Ended:
        """Tunes until the budget is spent or no proposal is left; writes and returns how and why it ended.

        A journal whose next step differs from the one computed here was written by another version: its events are
        replayed as they are, and the search continues after them.
        """
        try:
            first = base_proposal(self.base)
            first = self.sizing.sized(first, []) if self.sizing and self.bench.journal.next_recorded is None else first
            self._settle(self.bench.attempt(self.bench.enter(first)))
            return self._tune()
        except OtherStepError:
            self._catch_up()
            return self._tune()

    def _tune(self) -> Ended:
        self._search(PHASES)
        settled = self._make_sure(Settled())
        while True:
            while self._search(LATER_PASSES):
                settled = self._make_sure(settled)
            ended, completed = self._end(), self._history.completed
            changes = self._ablate()
            if self._history.completed == completed or not self._search(LATER_PASSES):
                break  # this ablation ended an earlier run of the tuner; the search continues after it
            settled = self._make_sure(settled)
        self.bench.journal.refuse_unreached()
        return self.bench.journal.append(msgspec.structs.replace(ended, changes=changes))

    def _ablate(self) -> tuple[ChangeShare, ...]:
        """Runs the reserved bursts on the best recipe's changes; returns the changes with their shares."""
        best, asked = self._history.best, self.bench.journal.next_is(AblationStarted, otherwise=self.bench.reserved > 0)
        knowledge = None if best is None else self.policy.knowledge(best, self._history.trials)
        ablation = None if knowledge is None else ablation_of(knowledge)
        if best is None or ablation is None:
            return ()
        bench = replace(self.bench, reserved=0)
        run = AblationRun(ablation=ablation, bench=bench, tuned=best.number, max_bursts=self.bench.reserved)
        changes = run.run() if asked else run.shares()
        if self._history.best is not None and self._history.best.number != best.number:
            replace(self, bench=bench)._confirm()
        return changes

    def _catch_up(self) -> None:
        """Replays the rest of the journal as written, and finishes its last burst and trial."""
        self.bench.replay()
        for number in self._history.proposals:
            if number not in self._history.attempted:
                self.bench.attempt(number)
            if self._history.attempted[number].verdict is None:
                self._settle(self._history.attempted[number])

    def _search(self, phases: Sequence[Phase]) -> bool:
        """Runs passes until one tries nothing; returns whether any tried something."""
        tried = False
        while self._pass(phases):
            tried, phases = True, LATER_PASSES
        return tried

    def _pass(self, phases: Sequence[Phase]) -> bool:
        before = len(self._history.proposals)
        for phase in phases:
            while (number := self._next(phase)) is not None:
                self._settle(self.bench.attempt(number))
        return len(self._history.proposals) != before

    def _make_sure(self, before: Settled) -> Settled:
        """Re-measures inconclusive trials, measures a reference unless one is known, and confirms a new best."""
        self._reconsider()
        self._full_size.measure()
        known = self._measure_reference(known=before.reference)
        best = self._history.best
        if best is not None and best.number != before.confirmed:
            self._confirm()
        return Settled(reference=known, confirmed=best.number if best is not None else None)

    @property
    def best(self) -> Trial:
        """Returns the last accepted trial; the base recipe's while none runs."""
        return self._history.best or self._history.attempted[0]

    @property
    def _full_size(self) -> FullSize:
        return FullSize(base=self.base, bench=self.bench, sizing=self.sizing, settle=self._settle)

    @property
    def _history(self) -> History:
        return self.bench.journal.history

    def _next(self, phase: Phase) -> int | None:
        """Returns the phase's next trial number: the recorded one on resume, else that of the policy's proposal. None
        if the next record is not of this phase, or the policy proposes nothing."""
        past = self.bench.journal.next_recorded
        if past is None:
            proposal = self._wanted(phase)
            return None if proposal is None else self.bench.enter(proposal)
        apart = isinstance(past, Proposed) and (is_at_full_size(past) or self._is_reference(past))
        if isinstance(past, Proposed) and past.phase is phase and not apart:
            return self.bench.journal.replay_or_append(Proposed, lambda: past).trial
        return None

    def _is_reference(self, past: Proposed) -> bool:
        """Returns whether a recorded FIT proposal is the reference's: every other one starts from the best trial."""
        best = self._history.best
        return best is not None and past.phase is Phase.FIT and past.parent != best.number

    def _wanted(self, phase: Phase) -> Proposal | None:
        """Returns the policy's proposal; None if there is none, it was tried or costs too much, budget or patience is
        spent, or a burst at full size must come first."""
        if not self.bench.may_burst or (phase is not Phase.FIT and self._history.best is None):
            return None
        if not self._full_size.leaves_room:
            return None
        proposal = self.policy.propose(self.best, phase, self._history.trials)
        if proposal is None or self._tried(proposal.recipe) or self._too_expensive(proposal):
            return None
        if proposal.fidelity is None and self._full_size.best_comes_first:
            return None
        if self._out_of_patience and not self._beats_noise(proposal):
            return None
        return proposal

    def _settle(self, trial: Trial) -> Trial:
        """Repeats the trial while repeats may change the verdict, then writes the verdict."""
        parent = self._history.attempted.get(trial.proposal.parent) if trial.proposal.parent is not None else None
        if trial.status is Status.OK and (idle := no_effect(trial, parent)):
            return self.bench.conclude(trial, Status.NOOP, Verdict.REJECTED, idle)
        judgement = self._judge(trial)
        while judgement.again and self.bench.may_burst:
            if self._history.best:
                self.bench.repeat(self._history.best)
            if self.bench.may_burst:
                trial = self.bench.repeat(trial)
            judgement = self._judge(trial)
        return self.bench.conclude(trial, trial.status, judgement.verdict, judgement.reason)

    def _reconsider(self) -> None:
        """Re-measures the inconclusive trials that look best, interleaved with the best, until they are decided or had
        MAX_PAIRS pairs."""
        for number in self._left_open():
            pairs = 0
            while pairs < MAX_PAIRS and self._history.attempted[number].verdict is Verdict.INCONCLUSIVE:
                pairs += 1
                best, trial = self._history.best, self._history.attempted[number]
                if best is None or _gain(trial, best) <= 0 or not self._pair(best, trial):
                    return
                judgement = self._judge(self._history.attempted[number])
                self.bench.conclude(trial, trial.status, judgement.verdict, judgement.reason)

    def _left_open(self) -> list[int]:
        best = self._history.best
        inconclusive = (trial for trial in self._history.trials if trial.verdict is Verdict.INCONCLUSIVE)
        few_bursts = [t for t in inconclusive if t.fidelity is None and len(t.bursts) <= MAX_PAIRS]
        gains = {trial.number: _gain(trial, best) for trial in few_bursts} if best else {}
        return sorted((number for number in gains if gains[number] > 0), key=lambda number: -gains[number])[
            :MAX_RECONSIDERED
        ]

    def _pair(self, one: Trial, other: Trial) -> bool:
        """Measures both trials again, one after the other; returns False if the budget does not allow both."""
        for trial in (one, other):
            if not self.bench.may_burst:
                return False
            self.bench.repeat(trial)
        return True

    def _measure_reference(self, *, known: bool) -> bool:
        """Measures a recipe close to the base recipe if that does not run, since the gain relative to a good first
        proposal would be too small. Later trials do not replace this reference. Returns whether it is known now."""
        given, past = self._history.attempted[0], self.bench.journal.next_recorded
        full = self._history.at_full_size(given.recipe) or given
        if Status.OK in (given.status, full.status) or self._history.best is None:
            return known
        if past is None:
            proposal = (
                self.policy.reference(given, self._history.trials) if not known and self.bench.may_burst else None
            )
            if proposal is None or self._tried(proposal.recipe):
                return known or self.bench.may_burst
            if self.sizing is not None and not self.bench.affords(proposal.recipe):
                proposal = self.sizing.sized(proposal, self._history.trials)
            number = self.bench.enter(proposal)
        elif isinstance(past, Proposed) and self._is_reference(past):
            number = self.bench.journal.replay_or_append(Proposed, lambda: past).trial
        else:
            return True
        return self._settle(self.bench.attempt(number)).status is Status.OK

    def _confirm(self) -> None:
        """Measures reference and best again, interleaved, until the speed-up is known to MAX_HALF_WIDTH or MAX_PAIRS
        are spent."""
        for _ in range(MAX_PAIRS):
            best, reference = self._history.best, self._history.reference
            if best is None or best.fidelity is not None:
                return
            if reference is None or best is reference or not self._unsure(best, reference):
                return
            if not self._pair(reference, best):
                return

    def _unsure(self, best: Trial, reference: Trial) -> bool:
        """Returns whether half of the speed-up's interval is wider than MAX_HALF_WIDTH, or a side has only one burst.

        On resume, recorded repeats count as wanted.
        """
        if self.bench.journal.next_recorded is not None:
            return self.bench.may_burst
        found = speedup(best, over=reference, trials=self._history.trials)
        return found is not None and (found.provisional or found.high - found.low > 2 * MAX_HALF_WIDTH * found.value)

    def _judge(self, trial: Trial) -> Judgement:
        best, trials = self._history.best, [*self._history.trials, trial]
        if trial.fidelity is None or self.sizing is None:
            same = best is None or best.fidelity is None
            return judge(trial, against=best if same else self._history.best_at_full_size, trials=trials)
        predicted = None
        if trial.status is Status.OK and self.bench.journal.next_recorded is None:
            predicted = self.sizing.at_full_size(trial, best, trials)
        return judge(trial, against=best, trials=trials, at_full_size=predicted)

    def _tried(self, recipe: Recipe) -> bool:
        digest = recipe.digest()
        return any(trial.recipe.digest() == digest for trial in self._history.attempted.values())

    @property
    def _out_of_patience(self) -> bool:
        return self._history.best is not None and self._without_gain >= self.patience

    @property
    def _without_gain(self) -> int:
        """Returns the number of trials since the last one with a gain."""
        return without_gain(self._history.trials, lambda trial: True)

    def _beats_noise(self, proposal: Proposal) -> bool:
        bound = proposal.predicted.gain_bound
        return bound is not None and bound > self._detectable_gain

    @property
    def _detectable_gain(self) -> float:
        return Noise(trials=self._history.trials).detectable_gain()

    def _too_expensive(self, proposal: Proposal) -> Reason | None:
        """Returns the reason if a burst costs more GPU-hours than it is expected to save in the planned training; else
        None, also without a planned training or a predicted gain."""
        planned, expected = self.base.tune.planned_gpu_hours, proposal.predicted.expected_improvement
        if planned is None or expected is None or self._history.best is None:
            return None
        saved, cost = -planned * math.expm1(-expected), self.bench.burst_gpu_hours
        if saved >= cost:
            return None
        return Reason(
            kind=ReasonKind.TOO_EXPENSIVE,
            figures={
                "cost_gpu_hours": cost,
                "saved_gpu_hours": saved,
                "planned_gpu_hours": planned,
                "unit": gpu_or_rank(self.base.cluster.gpu_name),
            },
        )

    def _stopped_by_cost(self) -> Reason | None:
        """Returns the reason if the cost of a burst ended the search; else None."""
        if self.base.tune.planned_gpu_hours is None:
            return None
        offers = (self.policy.propose(self.best, phase, self._history.trials) for phase in LATER_PASSES)
        return next((why for offer in offers if offer and (why := self._too_expensive(offer))), None)

    def _stopped_by_patience(self) -> Reason | None:
        """Returns the reason if too many trials without gain ended the search; else None."""
        if self._history.best is None or not self._out_of_patience:
            return None
        trials = self._history.trials
        offers = (self.policy.propose(self.best, phase, trials) for phase in LATER_PASSES)
        found = next((offer for offer in offers if offer and not self._tried(offer.recipe)), None)
        if found is None or self._beats_noise(found):
            return None
        return Reason(
            kind=ReasonKind.OUT_OF_PATIENCE,
            figures={
                "without_gain": self._without_gain,
                "gain_bound": found.predicted.gain_bound,
                "noise": self._detectable_gain,
            },
        )

    def _end(self) -> Ended:
        if self._history.best is None:
            trials = self._history.trials
            why = self.policy.why_stopped(self.best, trials)
            spent: dict[str, Any] = {"bursts": self.bench.spent, "budget": self.bench.budget}
            if self.bench.spent_out and self.policy.propose(self.best, Phase.FIT, trials) is not None:
                spent["left"] = True
            return Ended(status="infeasible", reason=Reason(kind=why.kind, figures={**why.figures, **spent}))
        if spent_out := self.bench.spent_out:
            return Ended(status="budget", reason=spent_out)
        why = (
            self._stopped_by_cost()
            or self._stopped_by_patience()
            or self.policy.why_stopped(self.best, self._history.trials)
        )
        return Ended(status="converged", reason=why)


def _gain(trial: Trial, best: Trial) -> float:
    """Returns the gain of a trial over the best, as a fraction of throughput; 0 if either has no step times."""
    return (throughput_ratio(trial, best) or 1.0) - 1.0


def base_proposal(recipe: Recipe) -> Proposal:
    """Returns the proposal of trial 0: the recipe as given."""
    return Proposal(recipe=recipe, parent=None, phase=Phase.FIT, fix="base", reason=Reason(kind=ReasonKind.BASE))
