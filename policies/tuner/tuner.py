"""The decider: phase → candidates → acquisition → proposal; `decision` has the steps of one decision.

Every result is a pure function of the trials and of what the `Tuner` was made of: recipe, seed, lessons, probe, nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from policies.candidates.fitting import cheapest_fit
from policies.candidates.knowledge import Knowledge
from policies.candidates.layouts import legal_space
from policies.reason import Reason, ReasonKind
from policies.search.acquisition import gain_interval
from policies.search.avoid import Avoid
from policies.search.space import Space, space_of
from policies.situation import situation_of
from policies.surrogate.blas import one_blas_thread
from policies.surrogate.lesson import Lesson
from policies.surrogate.prior import prior_of
from policies.surrogate.probed import with_probe
from policies.surrogate.probed_memory import memory_prior_of
from policies.surrogate.surrogate import Surrogate, fit_surrogate
from policies.trial import Phase, Prediction, Proposal, Status, Trial
from policies.tuner.decision import Decision
from policies.tuner.explain import Explain
from policies.tuner.ideas import Idea, rejected_ideas
from policies.tuner.sizing import MIN_FIT_PROBABILITY, Sizes
from trainer.estimate.candidates import tabulate
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe


class Tuner:
    """Proposes recipes for a study.

    `seed` is for Optuna's samplers; `lessons` are of other studies, `probed` the rows of a probe of this cluster.
    `nodes` is the launcher's number of nodes (None: as many as a recipe needs), for studies whose bursts may be
    smaller.
    """

    def __init__(
        self,
        base: Recipe,
        seed: int,
        lessons: Sequence[Lesson] = (),
        nodes: int | None = None,
        *,
        probed: Sequence[Row] = (),
    ) -> None:
        self._base, self._seed, self._lessons = base, seed, tuple(lessons)
        self._prior = with_probe(prior_of(lessons), probed, base)
        self._memory_prior = memory_prior_of(probed, base)
        self._decision: Decision | None = None
        self._fitted: tuple[tuple[Trial, ...], Surrogate] | None = None
        most = base.tune.proxy_nodes
        self._sizes = None if most is None else Sizes(most_nodes=most, nodes=nodes)

    @one_blas_thread()
    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        """Returns the next proposal of a phase; None if it has none that is worth a burst."""
        decision = self._decide(incumbent, trials)
        if not decision.knowledge.runs or decision.knowledge.needs_room:
            found = decision.first() if phase is Phase.FIT and decision.knowledge.needs_room else None
        else:
            found = None if phase is Phase.FIT else decision.next(phase, self._seed)
        return None if found is None else self._sized(found, decision.knowledge)

    @one_blas_thread()
    def sized(self, proposal: Proposal, trials: Sequence[Trial]) -> Proposal:
        """Returns the proposal with the size of its bursts (`fidelity`) that is worth most per GPU-hour."""
        # no incumbent runs: gains are not relative to one
        unknown = Trial(number=-1, proposal=proposal, changes={}, bursts=(), outcomes=(), status=Status.FAILED)
        return self._sized(proposal, self.knowledge(unknown, trials))

    def _sized(self, proposal: Proposal, knowledge: Knowledge) -> Proposal:
        best = self._sizes.best(proposal.recipe, knowledge) if self._sizes is not None else None
        return proposal if best is None else replace(proposal, fidelity=best.run.fidelity)

    @one_blas_thread()
    def at_full_size(self, trial: Trial, best: Trial | None, trials: Sequence[Trial]) -> Prediction:
        """Returns the prediction for a trial's recipe at full size, after all these trials: P(fits), and its gain over
        `best`."""
        surrogate, table = self.surrogate(trials), tabulate([trial.recipe])
        fits, peak = surrogate.memory.fits(table), surrogate.memory.peaks(table)
        predicted = Prediction(fits_probability=float(fits[0]), peak_gib=float(peak[0]))
        if best is None:
            return predicted
        time = surrogate.time
        log_step, deviation = time.difference(time.closed_form_of(trial.recipe), time.closed_form_of(best.recipe))
        gain, low, high = gain_interval(-float(log_step[0]), float(deviation[0]), time.noise)
        return replace(predicted, gain=gain, gain_low=low, gain_high=high, gain_bound=high)

    @one_blas_thread()
    def choice(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the trial whose recipe is predicted to be fastest at full size, of those that ran and should fit
        there; None if there is none. Of trials of the same recipe, one at full size is preferred to smaller ones."""
        failed = {t.recipe.digest() for t in trials if t.fidelity is None and t.status not in (Status.OK, Status.NOOP)}
        by_digest: dict[str, Trial] = {}
        for trial in trials:
            digest = trial.recipe.digest()
            if (
                trial.status is Status.OK
                and digest not in failed
                and (trial.fidelity is None or digest not in by_digest)
            ):
                by_digest[digest] = trial
        if not by_digest:
            return None
        found, surrogate = list(by_digest.values()), self.surrogate(trials)
        table = tabulate([trial.recipe for trial in found])
        log_step, _ = surrogate.time.predict(table)
        fits = surrogate.memory.fits(table)
        sure = [at for at in range(len(found)) if found[at].fidelity is None or fits[at] >= MIN_FIT_PROBABILITY]
        return found[min(sure, key=lambda at: log_step[at])] if sure else None

    @one_blas_thread()
    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        """Returns the cheapest change of the given recipe that is predicted to fit: the baseline of the speed-up.

        None if there is none.
        """
        decision = self._decide(given, trials)
        found = cheapest_fit(decision.knowledge)
        return decision.fitting(found, ReasonKind.REFERENCE) if found is not None else None

    @one_blas_thread()
    def why_stopped(self, incumbent: Trial, trials: Sequence[Trial]) -> Reason:
        """Returns why nothing more is proposed."""
        return self._decide(incumbent, trials).why_stopped()

    @one_blas_thread()
    def rejected_ideas(self, incumbent: Trial, trials: Sequence[Trial]) -> tuple[Idea, ...]:
        """Returns every fix that was considered for the incumbent and not proposed, with its figures."""
        return rejected_ideas(self.knowledge(incumbent, trials))

    @one_blas_thread()
    def knowledge(self, incumbent: Trial, trials: Sequence[Trial]) -> Knowledge:
        """Returns the input of a decision for an incumbent."""
        return Knowledge(
            given=self._base,
            incumbent=incumbent,
            trials=tuple(trials),
            situation=situation_of(incumbent),
            surrogate=self.surrogate(trials),
            avoid=Avoid(trials),
        )

    def surrogate(self, trials: Sequence[Trial]) -> Surrogate:
        """Returns the surrogate of the cluster after these trials, fitted once."""
        if self._fitted is None or not _are_same(self._fitted[0], trials):
            self._fitted = tuple(trials), self._fit(trials)
        return self._fitted[1]

    def _fit(self, trials: Sequence[Trial]) -> Surrogate:
        limits = [o.limit_gib for trial in trials for o in trial.outcomes if o.limit_gib is not None]
        limit_gib = min(limits, default=self._base.memory_limit_gib)
        return fit_surrogate(trials, limit_gib=limit_gib, prior=self._prior, memory_prior=self._memory_prior)

    @cached_property
    def _space(self) -> Space:
        return space_of(self._base, legal_space(self._base).finals.candidates)

    def _decide(self, incumbent: Trial, trials: Sequence[Trial]) -> Decision:
        """Returns the decision after these trials, cached for all phases."""
        key = (incumbent.number, *((t.number, len(t.outcomes), t.verdict) for t in trials))
        if self._decision is None or self._decision.key != key:
            knowledge = self.knowledge(incumbent, trials)
            same = self._decision is not None and self._decision.knowledge.recipe == knowledge.recipe
            single_moves = self._decision.single_moves if self._decision and same else None
            explain = Explain(knowledge, self._lessons)
            self._decision = Decision(
                key=key,
                knowledge=knowledge,
                legal=legal_space(self._base, knowledge.avoid.missing_knobs),
                space=self._space,
                explain=explain,
                single_moves=single_moves,
                sizes=self._sizes,
            )
        return self._decision


def _are_same(trials: Sequence[Trial], others: Sequence[Trial]) -> bool:
    return len(trials) == len(others) and all(one is other for one, other in zip(trials, others, strict=True))
