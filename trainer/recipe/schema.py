"""The recipe: everything that decides how a training job runs, immutable, as users write it in YAML.

Input and output have the same schema. Knobs are addressed by Megatron's name only, in any section:
`recipe.knob("micro_batch_size")`, `recipe.replace({"tensor_model_parallel_size": 2})`; the table in `knobs.py` has each
one's section and default. `load.py` reads files, `validation.py` reports every problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from trainer.recipe.architecture import Architecture, Section
from trainer.recipe.dump import yaml_text
from trainer.recipe.hardware import Hardware
from trainer.recipe.identity import digest_of
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import presets
from trainer.recipe.names import name_problem
from trainer.recipe.sections import (
    BurstSettings,
    Cluster,
    KnobValue,
    Parallelism,
    TrainerSettings,
    Training,
    TuneSettings,
    knob_problem,
)
from trainer.recipe.source import Source
from trainer.recipe.validation import validated


class Recipe(Section):
    name: str
    model: str | Architecture  # name of a preset, or the architecture itself
    cluster: Cluster
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    knobs: dict[str, KnobValue] = Field(default_factory=dict)
    burst: BurstSettings = BurstSettings()
    tune: TuneSettings = TuneSettings()
    trainer: TrainerSettings | None = None  # the user's trainer, for engine command

    @field_validator("name")
    @classmethod
    def _of_a_folder(cls, name: str) -> str:
        if problem := name_problem(name):
            raise PydanticCustomError("recipe_name", "{problem}", {"problem": problem})
        return name

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

    @property
    def architecture(self) -> Architecture:
        """Returns the model's fields, whether given in full or as a preset."""
        return presets()[self.model] if isinstance(self.model, str) else self.model

    @property
    def hardware(self) -> Hardware:
        return self.cluster.hardware

    @property
    def peak_tflops(self) -> float | None:
        """Returns the dense peak of one GPU in the recipe's precision, TFLOP/s; None if the table has none (CPU,
        fp32)."""
        return self.hardware.dense_tflops.get(self.training.precision)

    @property
    def ranks_per_node(self) -> int:
        return self.cluster.gpus_per_node or self.hardware.gpus_per_node

    @property
    def world_size(self) -> int:
        return self.cluster.nodes * self.ranks_per_node

    @property
    def data_parallel_size(self) -> int:
        """Returns world / (TP·PP·CP), at least 1; rounded down if the layout is illegal."""
        layout = self.parallelism
        group = layout.tensor_model_parallel_size * layout.pipeline_model_parallel_size * layout.context_parallel_size
        return max(1, self.world_size // group)

    @property
    def expert_tensor_parallel_size(self) -> int:
        """Returns the ETP size; TP if it is not set, as in Megatron."""
        return self.parallelism.expert_tensor_parallel_size or self.parallelism.tensor_model_parallel_size

    @property
    def num_microbatches(self) -> int:
        """Returns the micro batches per rank and step, at least 1."""
        return max(1, self.training.global_batch_size // (self.training.micro_batch_size * self.data_parallel_size))

    @property
    def memory_limit_gib(self) -> float | None:
        """Returns the memory limit per rank, GiB: the recipe's own, else the device's; None if neither is known."""
        return self.cluster.memory_gib if self.cluster.memory_gib is not None else self.hardware.memory_gib

    def knob(self, name: str) -> Any:
        """Returns a knob's value, or its default if it is not set. Raises KeyError for a name that is not a knob."""
        knob = KNOBS[name]
        if knob.section == "knobs":
            return self.knobs.get(name, knob.default)
        return getattr(getattr(self, knob.section), name)

    def replace(self, changes: dict[str, Any]) -> Recipe:
        """Returns a recipe with these knobs set (any section).

        Types are checked, legality is not: see `rules`. Raises BadInputError with every knob that does not exist or
        cannot have its value.
        """
        # sections without knobs
        kept = {"model": self.model, "cluster": self.cluster, "burst": self.burst, "tune": self.tune}
        data: dict[str, Any] = (
            self.model_dump(exclude={*kept, "knobs"}) | kept | {"knobs": {}}
        )  # only the changed `knobs`
        for name, value in changes.items():
            data[KNOBS[name].section if name in KNOBS else "knobs"][name] = value
        replaced = validated(Recipe, Source(name=self.name, data=data))
        return replaced.model_copy(update={"knobs": self.knobs | replaced.knobs})

    def diff(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """Returns {knob: (value here, value in `other`)} for every knob whose value differs, defaults included."""
        written = {**self.knobs, **other.knobs}
        named = (name for name, knob in KNOBS.items() if knob.section != "knobs" or name in written)
        pairs = {name: (self.knob(name), other.knob(name)) for name in named}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def digest(self) -> str:
        """Returns 16 hex digits, equal for recipes that no measurement can distinguish: names, tuning settings,
        deadlines and knobs without effect do not count."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest_of(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies the recipe as pydantic does, without its cached digest."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_digest", None)
        return copied

    def to_yaml(self, *, resolved: bool = False) -> str:
        """Returns the recipe as YAML; `resolved` includes every default, knobs included."""
        return yaml_text(self.written(resolved=resolved))

    def written(self, *, resolved: bool = False) -> dict[str, Any]:
        """Returns the data of the recipe's YAML file; with `resolved`, defaults and computed values are included."""
        data = self.model_dump(mode="json", exclude_defaults=not resolved)
        if resolved:
            names = [name for name, knob in KNOBS.items() if knob.section == "knobs"]
            data["knobs"] = {name: self.knob(name) for name in names}
            data["cluster"] |= {
                "gpus_per_node": self.ranks_per_node,
                "memory_gib": self.memory_limit_gib,
            }
        data["cluster"] = {"gpu": "cpu", **data.get("cluster", {})}
        return data
