"""The input of one decision: the incumbent, all trials, the surrogate fitted to them, what to avoid, the noise.

Rebuilt from the trials at each decision, so that a resumed study decides as the first run would have.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.changes.fix import Fix
from policies.constants import constant
from policies.noise import Noise, throughput
from policies.search.acquisition import CONFIDENT_FIT_PROBABILITY, MIN_FIT_PROBABILITY, min_fit_probability
from policies.search.avoid import Avoid
from policies.situation import Situation
from policies.surrogate.surrogate import Surrogate
from policies.trial import Status, Trial, Verdict
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

CHANCE_PSEUDO_TRIALS = constant("chance_pseudo_trials")


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The input of one decision. `given` is the study's base recipe, `situation` the incumbent as fixes see it."""

    given: Recipe
    incumbent: Trial
    trials: tuple[Trial, ...]
    situation: Situation
    surrogate: Surrogate
    avoid: Avoid

    @property
    def recipe(self) -> Recipe:
        return self.incumbent.recipe

    @property
    def runs(self) -> bool:
        """Returns true if the incumbent has run: gains are relative to it."""
        return throughput(self.incumbent) is not None

    @property
    def needs_room(self) -> bool:
        """Returns true if the incumbent ran out of memory or exceeded its limit.

        An incumbent that ran as a proxy needs room if it is not predicted to fit at full size. In a study with proxies,
        so does an incumbent without a burst.
        """
        if self.incumbent.status is Status.OOM:
            return True
        if self.given.tune.proxy_nodes is not None and not self.incumbent.bursts:
            return True
        if self.incumbent.fidelity is not None:
            return float(self.surrogate.memory.fits(tabulate([self.recipe]))[0]) < MIN_FIT_PROBABILITY
        peak, limit = self.situation.peak_gib, self.situation.limit_gib
        return peak is not None and limit is not None and peak > limit

    @property
    def noise(self) -> float:
        """Returns the relative half-spread of repeated bursts."""
        return Noise(trials=self.trials).half_spread()

    @property
    def min_fit(self) -> float:
        """Returns the P(fits) that a recipe needs to be worth a burst."""
        return min_fit_probability(self.trials)

    @property
    def min_fit_unmodelled(self) -> float:
        """Returns the P(fits) that a change outside the surrogate needs: CONFIDENT_FIT_PROBABILITY, or the incumbent's
        if lower."""
        return min(CONFIDENT_FIT_PROBABILITY, float(self.surrogate.memory.fits(tabulate([self.recipe]))[0]))

    def chance(self, fix: Fix) -> float:
        """Returns the probability that a fix brings a gain: its published record, updated by this study's verdicts on
        it."""
        verdicts = [t.verdict for t in self.trials if t.proposal.fix == fix.name and t.verdict is not None]
        paid = sum(verdict is Verdict.ACCEPTED for verdict in verdicts)
        return (fix.chance * CHANCE_PSEUDO_TRIALS + paid) / (CHANCE_PSEUDO_TRIALS + len(verdicts))

    def has_cores(self, recipe: Recipe) -> bool:
        """Returns true if each rank has a core for each of its threads.

        If the number of cores is not known, returns true if it uses no more threads than the incumbent.
        """
        outcome = self.situation.outcome
        if outcome is not None and outcome.cores_per_rank is not None:
            return not self.situation.oversubscribes(recipe)
        return bool(recipe.knob("threads_per_rank") <= self.recipe.knob("threads_per_rank"))
