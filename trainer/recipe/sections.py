"""The sections of a recipe other than its model and knobs, with the values that their fields allow."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from trainer.recipe.announced import announced
from trainer.recipe.architecture import Section
from trainer.recipe.framework_names import DEFAULT, framework_names
from trainer.recipe.gpu_figures import GpuFigures, hardware_of
from trainer.recipe.hardware import Hardware, Precision, known_hardware
from trainer.recipe.knobs import KNOBS, Numerics
from trainer.recipe.launching import Launcher, kind_of, slurm_settings
from trainer.recipe.machine import Machine

# Limits above any cluster and any batch, and small enough to enumerate all divisors
MAX_RANKS = 2**20
MAX_SEQUENCES = 10_000_000  # most sequences per step
MAX_TOKENS = 2**30  # most tokens per sequence
MAX_STEPS = 100_000  # most steps per burst
Size = Annotated[int, Field(gt=0, le=MAX_RANKS)]
Steps = Annotated[int, Field(ge=0, le=MAX_STEPS)]

KnobValue = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None


class Cluster(Section):
    gpu: str | GpuFigures = "cpu"  # a row of hardware.csv, lower case, "cpu", or a GPU's figures
    nodes: Size = 1
    gpus_per_node: Size | None = None  # None: the table's
    memory_gib: float | None = Field(default=None, gt=0)  # per GPU (or CPU rank); None: the table's
    network_gbit_s: float | None = Field(default=None, gt=0)  # per GPU, between nodes; None: the table's

    @field_validator("gpu")
    @classmethod
    def _known(cls, gpu: str | GpuFigures) -> str | GpuFigures:
        if isinstance(gpu, str) and gpu in announced():
            fact, hint = announced()[gpu]
            raise PydanticCustomError("gpu_announced", "{fact}", {"fact": fact, "hint": hint})
        if isinstance(gpu, str) and gpu not in known_hardware():
            raise ValueError(f"no GPU {gpu!r} in the table; there are {', '.join(known_hardware())}")
        return gpu

    @field_validator("gpus_per_node")
    @classmethod
    def _not_too_many(cls, each: int | None, info: ValidationInfo) -> int | None:
        if each is not None and each * info.data.get("nodes", 1) > MAX_RANKS:
            raise PydanticCustomError("too_many_ranks", "more than {most} GPUs in all", {"most": f"{MAX_RANKS:,}"})
        return each

    @model_validator(mode="after")
    def _says_what_figures_leave_open(self) -> Cluster:
        if isinstance(self.gpu, str):
            return self
        wanted: dict[str, float | None] = {"gpus_per_node": self.gpus_per_node}
        if self.nodes > 1:
            wanted["network_gbit_s"] = self.network_gbit_s or self.gpu.network_gbit_s
        if missing := [name for name, value in wanted.items() if value is None]:
            message = "no table knows {missing} of a GPU that is given by figures"
            raise PydanticCustomError("figures_missing", message, {"missing": " and ".join(missing)})
        return self

    @property
    def gpu_name(self) -> str:
        return self.gpu if isinstance(self.gpu, str) else self.gpu.name

    @property
    def hardware(self) -> Hardware:
        return hardware_of(self.gpu, self.gpus_per_node, self.network_gbit_s)


class Training(Section):
    seq_length: int = Field(default=4096, gt=0, le=MAX_TOKENS)
    global_batch_size: int = Field(default=256, gt=0, le=MAX_SEQUENCES)
    micro_batch_size: int = Field(default=1, gt=0, le=MAX_SEQUENCES)
    precision: Precision = "bf16"

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_length


class Parallelism(Section):
    tensor_model_parallel_size: Size = 1
    pipeline_model_parallel_size: Size = 1
    context_parallel_size: Size = 1
    expert_model_parallel_size: Size = 1
    expert_tensor_parallel_size: Size | None = None  # None: as Megatron, equal to TP
    virtual_pipeline_model_parallel_size: Size | None = None


class BurstSettings(Section):
    engine: str = "megatron"
    launcher: Launcher = "local"
    machine: Machine | None = None  # for engine simulated; None: as published. Read from a packaged name or a file
    warmup_steps: Steps = 3
    measure_steps: int = Field(default=8, gt=0, le=MAX_STEPS)
    trace_steps: Steps = 2
    deadline_s: float = Field(default=900.0, gt=0)
    probe_links: bool = True  # true: on several nodes, measure the links between them before the first burst
    env: dict[str, str] = Field(default_factory=dict)  # environment variables of the ranks, for engine megatron

    @property
    def launcher_kind(self) -> str:
        return kind_of(self.launcher)

    @property
    def keeps_ranks(self) -> bool:
        """Returns whether ranks stay alive between bursts: not those of the user's command, nor those of one job per
        burst."""
        per_burst = self.launcher_kind == "slurm" and slurm_settings(self.launcher).job != "allocation"
        return self.engine != "command" and not per_burst

    @field_validator("machine")
    @classmethod
    def _of_the_simulation(cls, machine: Machine | None, info: ValidationInfo) -> Machine | None:
        engine = info.data.get("engine")
        if machine is not None and engine != "simulated":
            raise PydanticCustomError(
                "not_simulated", "engine {engine} runs on the cluster it finds", {"engine": engine}
            )
        return machine

    @field_validator("env")
    @classmethod
    def _of_our_ranks(cls, env: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        engine = info.data.get("engine")
        if env and engine != "megatron":
            raise PydanticCustomError("not_our_ranks", "engine {engine} starts none of our ranks", {"engine": engine})
        return env


class TrainerSettings(Section):
    """The user's own trainer, for engine command.

    `command` is run by each rank; the recipe's arguments follow it, or replace {args} in it.
    """

    kind: str = DEFAULT
    version: str | None = None  # release of Megatron-LM or Megatron-Bridge, whose flags change; None: the newest
    command: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)
    # lines of bash before the command, in every rank of a burst and in exports: module load, conda activate; after
    # `#!/bin/bash -l`, in a login shell
    setup: Annotated[tuple[str, ...], Field(strict=False)] = ()
    # words of `command` and values of `env` that bash expands when the job starts, as inside double quotes:
    # /ckpt/run-$SLURM_JOB_ID
    expand: Annotated[tuple[str, ...], Field(strict=False)] = ()
    mock_data: bool = False  # true: the trainer's own mock data; false: the user's data
    inject: bool = True  # true: a sitecustomize of ours names ranges and reports the memory of every rank
    trace: Literal["torch", "nsys", "none"] = "torch"
    first_step_s: float = Field(default=1800.0, gt=0)  # deadline of the first iteration: imports, compilation, data
    patterns: dict[str, str] = Field(default_factory=dict)  # for kind custom: regular expressions of its lines

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, kind: Any) -> Any:
        if kind not in framework_names():
            raise PydanticKnownError("literal_error", {"expected": " or ".join(framework_names())})
        return kind

    @field_validator("version")
    @classmethod
    def _version(cls, version: str | None) -> str | None:
        if version is not None and not re.fullmatch(r"(core_)?v?\d+(\.\d+)*|head|main|dev", version, re.IGNORECASE):
            raise PydanticCustomError("trainer_version", "{version} is not a version", {"version": repr(version)})
        return version


class TuneSettings(Section):
    freeze: Annotated[tuple[str, ...], Field(strict=False)] = ("global_batch_size", "seq_length")
    allow: Numerics = "training-equivalent"
    objective: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    # sampler of the search: the surrogate, or one of Optuna's
    sampler: Literal["surrogate", "tpe", "gp", "random"] = "surrogate"
    patience: int = Field(default=5, gt=0)  # proposals without an accepted gain before the search stops
    # GPU-hours of the training that the tuned recipe is for
    planned_gpu_hours: float | None = Field(default=None, gt=0)
    proxy_nodes: Size | None = (
        None  # most nodes of the proxies (smaller runs) that bursts may measure instead of the recipe; None: no proxies
    )
    notify: str | None = Field(default=None, min_length=1)  # a shell command to run when the study ends

    @field_validator("sampler", mode="before")
    @classmethod
    def _of_older_recipes(cls, sampler: Any) -> Any:
        """Replaces `model`, the word for the surrogate in recipes and journals of earlier versions."""
        return "surrogate" if sampler == "model" else sampler

    @field_validator("freeze")
    @classmethod
    def _knobs(cls, freeze: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in freeze if name not in KNOBS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such knob to freeze")
        return freeze


def knob_problem(name: str, value: Any) -> str | None:
    """Returns the reason why `knobs: {name: value}` is invalid; None if it is valid."""
    knob = KNOBS.get(name)
    if knob is None:
        return "no such knob"
    if knob.section != "knobs":
        return f"it is written in {knob.section}, not in knobs"
    return knob.domain.problem(knob.domain.canonical(value))
