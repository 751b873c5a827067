"""The whole of a machine file: the simulation's keys, and figures that bursts or a probe learned of a cluster.

The second section, `estimate`, holds factors on the constants of the closed forms of `estimate` and `plan`. The
simulation does not read it: a recipe takes the keys of the file, and its digest does not depend on that section.
"""

from __future__ import annotations

from pydantic import Field

from trainer.recipe.architecture import Section
from trainer.recipe.machine import Machine


class Learned(Section):
    """One learned figure: its mean on the scale of its factor, 0 as in the tables, and its standard deviation."""

    mean: float = Field(description="on a log scale for rates and times, on a logit scale for shares; 0: the table's")
    deviation: float = Field(ge=0, description="standard deviation of the mean, on the same scale")


class Estimate(Section):
    """Figures that a study or a probe learned of this cluster, for `estimate` and `plan`."""

    source: str = Field(description="the study or the probe")
    trials: int = Field(0, ge=0, description="measured recipes of the study")
    gpu: str = Field(description="the GPU it was learned on; factors hold for no other")
    versions: dict[str, str] = Field({}, description="software it was learned with")
    factors: dict[str, Learned] = Field({}, description="factors on the constants of the step time, by name")
    memory: dict[str, Learned] = Field({}, description="factors on the parts of the memory estimate, by name")


class MachineFile(Machine):
    """A machine file with both sections."""

    estimate: Estimate | None = Field(None, description="what was learned of the cluster, for the closed forms")

    @property
    def machine(self) -> Machine:
        """Returns the simulation's keys alone."""
        return Machine(**{name: getattr(self, name) for name in Machine.model_fields})
