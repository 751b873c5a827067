"""The recipe: everything that decides how a training job runs, immutable, as people write it in YAML.

The same schema goes in and comes out. Knobs are addressed by Megatron's name alone, whatever section they are
written in: `recipe.knob("micro_batch_size")`, `recipe.replace({"tensor_model_parallel_size": 2})`; the table in
`knobs.py` knows each one's section and default. Reading files and naming every problem is `load.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainer.recipe.architecture import Architecture, Section
from trainer.recipe.hardware import Hardware, known_hardware
from trainer.recipe.knobs import KNOBS, Numerics
from trainer.recipe.models import presets

KnobValue = bool | int | float | str | tuple[str, ...] | None
Precision = Literal["fp32", "bf16", "fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8", "nvfp4"]


class Cluster(Section):
    gpu: str = "cpu"  # a row of hardware.csv, lower case, or "cpu"
    nodes: int = Field(default=1, gt=0)
    gpus_per_node: int | None = Field(default=None, gt=0)  # None: the table's
    memory_gib: float | None = Field(default=None, gt=0)  # per GPU (or CPU rank); None: the table's

    @field_validator("gpu")
    @classmethod
    def _known(cls, gpu: str) -> str:
        if gpu not in known_hardware():
            raise ValueError(f"no GPU {gpu!r} in the table; there are {', '.join(known_hardware())}")
        return gpu


class Training(Section):
    seq_length: int = Field(default=4096, gt=0)
    global_batch_size: int = Field(default=256, gt=0)
    micro_batch_size: int = Field(default=1, gt=0)
    precision: Precision = "bf16"


class Parallelism(Section):
    tensor_model_parallel_size: int = Field(default=1, gt=0)
    pipeline_model_parallel_size: int = Field(default=1, gt=0)
    context_parallel_size: int = Field(default=1, gt=0)
    expert_model_parallel_size: int = Field(default=1, gt=0)
    expert_tensor_parallel_size: int | None = Field(default=None, gt=0)  # None: as Megatron, equal to TP
    virtual_pipeline_model_parallel_size: int | None = Field(default=None, gt=0)


class BurstSettings(Section):
    engine: str = "megatron"
    launcher: str = "local"
    warmup_steps: int = Field(default=3, ge=0)
    measure_steps: int = Field(default=8, gt=0)
    trace_steps: int = Field(default=2, ge=0)
    deadline_s: float = Field(default=900.0, gt=0)


class TuneSettings(Section):
    freeze: Annotated[tuple[str, ...], Field(strict=False)] = ("global_batch_size", "seq_length")
    allow: Numerics = "training-equivalent"
    objective: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    patience: int = Field(default=5, gt=0)  # proposals without an accepted gain before the search stops

    @field_validator("freeze")
    @classmethod
    def _knobs(cls, freeze: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in freeze if name not in KNOBS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such knob to freeze")
        return freeze


class Recipe(Section):
    name: str
    model: str | Architecture  # a preset's name, or the architecture itself
    cluster: Cluster
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    knobs: dict[str, KnobValue] = Field(default_factory=dict)
    burst: BurstSettings = BurstSettings()
    tune: TuneSettings = TuneSettings()

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str | Architecture) -> str | Architecture:
        if isinstance(model, str) and model not in presets():
            raise ValueError(f"no model {model!r} among the presets")
        return model

    @field_validator("knobs", mode="before")
    @classmethod
    def _legal_knobs(cls, knobs: Any) -> Any:
        if not isinstance(knobs, dict):
            return knobs
        problems = [f"{name}: {problem}" for name, value in knobs.items() if (problem := knob_problem(name, value))]
        if problems:
            raise ValueError("; ".join(problems))
        return {name: KNOBS[name].domain.canonical(value) for name, value in knobs.items()}

    # --- architecture and sizes -------------------------------------------------------------------------
    @property
    def architecture(self) -> Architecture:
        """The model's fields, whether written out or named as a preset."""
        return presets()[self.model] if isinstance(self.model, str) else self.model

    @property
    def hardware(self) -> Hardware:
        return known_hardware()[self.cluster.gpu]

    @property
    def world_size(self) -> int:
        return self.cluster.nodes * (self.cluster.gpus_per_node or self.hardware.gpus_per_node)

    @property
    def data_parallel_size(self) -> int:
        """World / (TP·PP·CP), rounded down where the layout is illegal, but at least 1."""
        layout = self.parallelism
        group = layout.tensor_model_parallel_size * layout.pipeline_model_parallel_size * layout.context_parallel_size
        return max(1, self.world_size // group)

    @property
    def expert_tensor_parallel_size(self) -> int:
        """As Megatron: not written means equal to TP."""
        return self.parallelism.expert_tensor_parallel_size or self.parallelism.tensor_model_parallel_size

    @property
    def num_microbatches(self) -> int:
        """Micro batches a rank works through in a step, at least 1."""
        return max(1, self.training.global_batch_size // (self.training.micro_batch_size * self.data_parallel_size))

    @property
    def memory_limit_gib(self) -> float | None:
        """Per rank: the recipe's own, else the hardware table's."""
        return self.cluster.memory_gib if self.cluster.memory_gib is not None else self.hardware.memory_gib

    # --- knobs ------------------------------------------------------------------------------------------
    def knob(self, name: str) -> Any:
        """A knob's value: as written, else the table's default. KeyError for a name that is no knob."""
        knob = KNOBS[name]
        if knob.section == "knobs":
            return self.knobs.get(name, knob.default)
        return getattr(getattr(self, knob.section), name)

    def replace(self, changes: dict[str, Any]) -> Recipe:
        """A recipe with these knobs set (any section). Types are checked, legality is not: see `rules`.

        BadInputError names every knob that does not exist or cannot take its value.
        """
        from trainer.recipe.load import recipe_from
        from trainer.recipe.source import Source

        data = self.model_dump()
        for name, value in changes.items():
            data[KNOBS[name].section if name in KNOBS else "knobs"][name] = value
        return recipe_from(Source(name=self.name, data=data))

    def diff(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """{knob: (here, there)} for every knob whose value differs, defaults filled in."""
        pairs = {name: (self.knob(name), other.knob(name)) for name in KNOBS}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def digest(self) -> str:
        """16 hex digits that two recipes share when no measurement could tell them apart: names, tuning settings,
        deadlines and knobs that are inert beside the others do not count."""
        from trainer.recipe.identity import digest_of

        return digest_of(self)

    # --- output -----------------------------------------------------------------------------------------
    def to_yaml(self, *, resolved: bool = False) -> str:
        """The recipe as YAML; `resolved` writes every default, knobs included."""
        from trainer.recipe.dump import recipe_yaml

        return recipe_yaml(self, resolved=resolved)


def knob_problem(name: str, value: Any) -> str | None:
    """Why `knobs: {name: value}` cannot stand; None when it can."""
    knob = KNOBS.get(name)
    if knob is None:
        return "no such knob"
    if knob.section != "knobs":
        return f"it is written in {knob.section}, not in knobs"
    return knob.domain.problem(knob.domain.canonical(value))
