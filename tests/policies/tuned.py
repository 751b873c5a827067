"""A tuning run without the loop: the tuner on a real or simulated engine, judged by a plain threshold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analyzers import analyze
from policies.noise import throughput
from policies.trial import PHASES, Phase, Proposal, Trial, Verdict, status_of
from policies.tuner.tuner import Tuner
from trainer.burst import Burst
from trainer.engines import Engine
from trainer.engines.simulated import Machine, SimulatedEngine
from trainer.recipe import Recipe

GAIN = 0.015  # above three times the planted noise of a burst


class Run:
    """State of a tuning run.

    `trials` grows while `tune` runs; `best` is the last accepted trial, the base while none runs.
    """

    def __init__(
        self,
        base: Recipe,
        folder: Path,
        *,
        machine: Machine | None = None,
        engine: Engine | None = None,
        seed: int = 0,
    ) -> None:
        base = base if engine else on_machine(base, machine or Machine())
        self.engine = engine or SimulatedEngine(folder)
        self.tuner = Tuner(base, seed)
        self.folder = folder
        self.trials: list[Trial] = []
        self.attempt(Proposal(recipe=base, parent=None, phase=Phase.FIT, fix="base"))

    @property
    def best(self) -> Trial:
        return next((t for t in reversed(self.trials) if t.accepted), self.trials[0])

    def tune(self, budget: int) -> Trial:
        """Passes over the phases until the budget is spent or a pass finds nothing; returns the best trial."""
        found = -1
        while found != self.best.number and len(self.trials) < budget:
            found = self.best.number
            for phase in PHASES:
                while len(self.trials) < budget and (proposal := self.propose(phase)):
                    self.attempt(proposal)
        return self.best

    def propose(self, phase: Phase) -> Proposal | None:
        return self.tuner.propose(self.best, phase, self.trials)

    def step(self, phase: Phase) -> Trial:
        """Runs the phase's next proposal."""
        proposal = self.propose(phase)
        assert proposal is not None
        return self.attempt(proposal)

    def attempt(self, proposal: Proposal) -> Trial:
        number = len(self.trials)
        folder = self.folder / f"{number:04d}"
        outcome = self.engine.run(Burst(number=number, recipe=proposal.recipe, folder=folder))
        parent = self.trials[proposal.parent] if proposal.parent is not None else None
        trial = Trial(
            number=number,
            proposal=proposal,
            changes=parent.recipe.diff(proposal.recipe) if parent else {},
            bursts=(number,),
            outcomes=(outcome,),
            status=status_of(outcome),
            analysis=analyze([folder]) if outcome.ok else None,
        )
        self.trials.append(replace(trial, verdict=self._verdict(trial)))
        return self.trials[-1]

    def _verdict(self, trial: Trial) -> Verdict:
        figure, best = throughput(trial), throughput(self.best) if self.trials else None
        if figure is None:
            return Verdict.REJECTED
        return Verdict.ACCEPTED if best is None or figure > best * (1 + GAIN) else Verdict.REJECTED


def on_machine(recipe: Recipe, machine: Machine) -> Recipe:
    """Returns the recipe, its bursts simulated on this machine."""
    burst = recipe.burst.model_copy(update={"engine": "simulated", "machine": machine})
    return recipe.model_copy(update={"burst": burst})
