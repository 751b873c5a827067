"""Reads the machine file of `--machine`: figures learned about a cluster, for `estimate`, `plan`, `check` and
`init`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from autotune.looks.quantities import counted
from trainer.errors import BadInputError, Problem
from trainer.estimate.learned import TABLES, LearnedCluster
from trainer.recipe import Recipe
from trainer.recipe.load_machine import load_machine_file
from trainer.recipe.machine_file import LearnedFactors, MachineFile

WHERE = "--machine"


class UsedMachine(TypedDict):
    """The machine file that a command used, and the study or probe it was learned from."""

    name: str
    file: str
    source: str  # a study or a probe
    trials: int  # recipes that were measured
    gpu: str
    factors: int  # factors of the step time
    unknown: list[str]  # figures of the file that this version does not know


@dataclass(frozen=True, kw_only=True)
class ChosenMachine:
    """A machine file that was named on the command line, with its section `estimate`."""

    given: str
    file: MachineFile
    estimate: LearnedFactors

    @property
    def cluster(self) -> LearnedCluster:
        from policies.surrogate.learned import learned_cluster  # imports the surrogate, and SciPy with it

        return learned_cluster(self.estimate, name=self.given)

    @property
    def document(self) -> UsedMachine:
        return {
            "name": self.file.name,
            "file": self.given,
            "source": self.estimate.source,
            "trials": self.estimate.trials,
            "gpu": self.estimate.gpu,
            "factors": len(self.estimate.factors),
            "unknown": self._unknown,
        }

    @property
    def words(self) -> str:
        """Returns one line: the machine, and the study or probe it was learned from."""
        learned = f"{counted(len(self.estimate.factors), 'factor')} learned from {self.estimate.source}"
        trials = f", {counted(self.estimate.trials, 'recipe')} on {self.estimate.gpu}" if self.estimate.trials else ""
        left_out = f"; not known to this version, left out: {', '.join(self._unknown)}" if self._unknown else ""
        return f"machine {self.file.name} ({self.given}): {learned}{trials}{left_out}"

    @property
    def _unknown(self) -> list[str]:
        """Returns the figures of the file that this version does not know."""
        from policies.surrogate.learned import unknown_figures

        return unknown_figures(self.estimate)

    def simulated_step_s(self, recipe: Recipe) -> float:
        """Returns the step of the recipe in a simulation of the machine, seconds."""
        from trainer.engines.simulated import simulated_step_s

        return simulated_step_s(recipe, self.file.machine)


def chosen_machine(named: str | None, *, gpu: str) -> ChosenMachine | None:
    """Reads the machine file; returns None if none is named.

    Raises BadInputError if it cannot be read, or has no section `estimate`, or one of another GPU than `gpu`.
    """
    if named is None:
        return None
    file = load_machine_file(named, where=WHERE)
    if file.estimate is None:
        raise _refused(
            named, "it has no section `estimate`: nothing was learned for it", "`moe-autotune twin STUDY -o FILE`"
        )
    if file.estimate.gpu != gpu:
        raise _refused(
            named,
            f"it was learned on {file.estimate.gpu}, this recipe is for {gpu}",
            f"name a machine of {gpu}, or leave {WHERE} out",
        )
    return ChosenMachine(given=named, file=file, estimate=file.estimate)


def cluster_of(machine: ChosenMachine | None) -> LearnedCluster:
    return TABLES if machine is None else machine.cluster


def _refused(named: str, what: str, hint: str) -> BadInputError:
    return BadInputError(Problem(where=f"{WHERE} {named}", what=what, hint=hint))
