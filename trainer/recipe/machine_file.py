"""A complete machine file: the simulation's keys, and figures that bursts or a probe measured on a cluster.

The latter, in section `estimate`, are factors on the constants that `estimate` and `plan` use. The simulation does not
read that section, and a recipe's digest does not depend on it.
"""

from __future__ import annotations

from pydantic import Field

from trainer.recipe.architecture import Section
from trainer.recipe.machine import Machine


class Learned(Section):
    """One fitted factor: its mean on the factor's scale, where 0 is the value of the tables, and its standard
    deviation."""

    mean: float = Field(
        description="on a log scale for rates and times (of what is over 1 for the imbalance), on a logit scale for "
        "shares; 0: the table's"
    )
    deviation: float = Field(ge=0, description="standard deviation of the mean, on the same scale")


class LearnedFactors(Section):
    """Factors that a study or a probe fitted for this cluster, used by `estimate` and `plan`."""

    source: str = Field(description="the study or the probe")
    trials: int = Field(0, ge=0, description="measured recipes of the study")
    gpu: str = Field(description="the GPU on which the factors were fitted; they hold for no other")
    versions: dict[str, str] = Field({}, description="software with which the factors were fitted")
    factors: dict[str, Learned] = Field({}, description="factors on the constants of the step time, by name")
    memory: dict[str, Learned] = Field({}, description="factors on the parts of the memory estimate, by name")


class MachineFile(Machine):
    """A machine file: the simulation's keys and section `estimate`."""

    estimate: LearnedFactors | None = Field(None, description="factors fitted on the cluster, for the closed forms")

    @property
    def machine(self) -> Machine:
        """Returns the keys that a simulation uses."""
        return Machine(**{name: getattr(self, name) for name in Machine.model_fields})
