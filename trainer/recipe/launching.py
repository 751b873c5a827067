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

    job: Literal["allocation", "per-burst"] = "allocation"  # allocation: of the salloc or sbatch around the tuner
    allocate: str | None = None  # words of sbatch: one job for the whole study, with the tuner in it
    partition: str | None = None  # this and the next three: of job per-burst and of allocate
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    # of job per-burst; None: what the burst's own deadlines add up to
    time_limit_minutes: int | None = Field(default=None, gt=0)
    queue_minutes: int | None = Field(default=None, gt=0)  # how long a job may wait to start; None: as long as it takes
    exclude: Words = ()  # nodes never to use
    interface: str | None = None  # network of gloo and NCCL between nodes; None: that by which nodes reach the first
    srun: Words = ()  # further words, passed on as they are; so are the next
    sbatch: Words = ()
    container_image: str | None = None  # of pyxis: srun --container-image
    container_mounts: Words = ()
    prefix: Words = ()  # before what runs on each node: [apptainer, exec, --nv, image.sif]
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
    ssh: Words = ()  # further words of ssh: [-p, "2222"], [-F, cluster.conf]
    interface: str | None = None  # network of gloo and NCCL between hosts; None: that by which they reach the first
    prefix: Words = ()  # before what runs on each host: [apptainer, exec, --nv, image.sif]
    python: str | None = None  # the interpreter on the hosts; None: that of the tuner


class Launching(Section):
    """`{slurm: {…}}`: a launcher given with settings."""

    slurm: SlurmSettings


def _form(value: Any) -> str:
    if isinstance(value, str):
        return "name"
    named = isinstance(value, HostsSettings) or (isinstance(value, Mapping) and "hosts" in value)
    return "over ssh" if named else "settings"  # tags are no keys that could be written


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
