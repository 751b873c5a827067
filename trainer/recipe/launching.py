"""The `burst.launcher` of a recipe, which starts its ranks: its kind and the settings of each kind."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from trainer.recipe.architecture import Section

Words = Annotated[tuple[str, ...], Field(strict=False)]


class SlurmSettings(Section):
    """Settings of launcher slurm: a job step in the tuner's own allocation, or one job per burst.

    `allocate` are sbatch arguments: outside an allocation, the tuner submits one job for the study and runs itself in
    it. `srun` and `sbatch` are further arguments for either, passed unchanged; they replace arguments that the launcher
    would set.
    """

    # allocation: a step in the salloc or sbatch job that the tuner runs in
    job: Literal["allocation", "per-burst"] = "allocation"
    allocate: str | None = None
    partition: str | None = None  # this and the next three: with `job: per-burst` or `allocate`
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    # with `job: per-burst`; None: the sum of the burst's own deadlines
    time_limit_minutes: int | None = Field(default=None, gt=0)
    queue_minutes: int | None = Field(default=None, gt=0)  # how long a job may wait to start; None: no limit
    exclude: Words = ()  # nodes never to use
    # network interface of gloo and NCCL between nodes; None: the one by which nodes reach the first
    interface: str | None = None
    srun: Words = ()
    sbatch: Words = ()
    container_image: str | None = None  # for pyxis: srun --container-image
    container_mounts: Words = ()
    prefix: Words = ()  # words before the command on each node: [apptainer, exec, --nv, image.sif]
    python: str | None = None  # the interpreter on the nodes; None: that of the tuner

    @field_validator("allocate")
    @classmethod
    def _is_of_one_job(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuses unbalanced quotes, and `allocate` together with one job per burst."""
        if value is None:
            return None
        if info.data.get("job") == "per-burst":
            raise ValueError("allocate takes one job for the whole study, job: per-burst one for each burst: keep one")
        shlex.split(value)
        return value


class HostsSettings(Section):
    """`{hosts: [n1, n2], …}`: settings of launcher hosts (ssh). Hosts beyond the recipe's nodes are spares."""

    hosts: Annotated[Words, Field(min_length=1)]
    ssh: Words = ()  # further options of ssh: [-p, "2222"], [-F, cluster.conf]
    # network interface of gloo and NCCL between hosts; None: the one by which they reach the first
    interface: str | None = None
    prefix: Words = ()  # words before the command on each host: [apptainer, exec, --nv, image.sif]
    python: str | None = None  # the interpreter on the hosts; None: that of the tuner


class Launching(Section):
    """`{slurm: {…}}`: a launcher given with settings."""

    slurm: SlurmSettings


def _form(value: Any) -> str:
    if isinstance(value, str):
        return "name"
    named = isinstance(value, HostsSettings) or (isinstance(value, Mapping) and "hosts" in value)
    return "over ssh" if named else "settings"  # tags of pydantic's union, different from every key


Launcher = Annotated[
    Annotated[str, Tag("name")] | Annotated[Launching, Tag("settings")] | Annotated[HostsSettings, Tag("over ssh")],
    Discriminator(_form),
]


def kind_of(launcher: str | Launching | HostsSettings) -> str:
    """Returns the launcher's name (local, slurm, …): its settings do not change what is measured."""
    if isinstance(launcher, str):
        return launcher
    return "hosts" if isinstance(launcher, HostsSettings) else "slurm"


def slurm_settings(launcher: str | Launching | HostsSettings) -> SlurmSettings:
    """Returns the settings of launcher slurm; the defaults if only its name is given."""
    return launcher.slurm if isinstance(launcher, Launching) else SlurmSettings()


def hosts_settings(launcher: str | Launching | HostsSettings) -> HostsSettings | None:
    """Returns the settings of launcher hosts; None if only its name is given."""
    return launcher if isinstance(launcher, HostsSettings) else None
