"""The starter recipe `moe-autotune init` writes: a model, a cluster, and a comment at everything worth
changing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from trainer.errors import BadInputError, Problem
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import known_hardware
from trainer.recipe.hugging_face import model_fields, read_config
from trainer.recipe.models import presets
from trainer.recipe.names import safe_name
from trainer.recipe.source import nearest

Row = TypeVar("Row")

TEMPLATE = """\
# A training recipe. Only `model` and `cluster` are required; what is left out has its default
# (`moe-autotune run THIS --dry-run` shows every one). Knobs keep Megatron's names.
name: {name}
model: {model}    # a preset, a config.json, or a mapping of Megatron-Core's own fields: num_layers, hidden_size, ...
cluster: {{gpu: {gpu}, nodes: {nodes}, gpus_per_node: {gpus_per_node}}}    # memory_gib: less than the GPU has

training:
  seq_length: 4096
  global_batch_size: {global_batch_size}    # decides convergence: never moved unless taken out of tune.freeze
  micro_batch_size: 1
  precision: {precision}    # fp32 bf16 fp8_blockwise fp8_current fp8_delayed mxfp8 nvfp4

parallelism:    # tp pp cp ep etp vpp are accepted too
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  context_parallel_size: 1
  expert_model_parallel_size: {expert_model_parallel_size}

knobs:    # anything else of Megatron's that is not at its default
  use_distributed_optimizer: true

burst:    # one short training run; the tuner makes many
  engine: megatron    # megatron (real training) or simulated (a simulated cluster; machine: names how it differs)
  launcher: local
  warmup_steps: 3
  measure_steps: 8    # timed
  trace_steps: 2    # profiled, after and apart from the timed ones
  deadline_s: 900

tune:
  freeze: [global_batch_size, seq_length]    # knobs that must stay as they are
  allow: training-equivalent    # or numerics-changing (FP8 and the like), or benchmark-only
  patience: 5    # proposals without a gain before the search stops
  sampler: model # of retune: model (what is learnt), or Optuna's tpe, gp, random
"""


def starter_recipe(*, model: str, gpu: str, gpus: int) -> str:
    """A recipe as text. Raises BadInputError for a model or GPU that has no row, or GPUs that fill no whole
    nodes."""
    experts = _model(model).num_moe_experts or 1
    per_node = min(gpus, _known(known_hardware(), gpu, "--gpu").gpus_per_node)
    if gpus % per_node:
        raise BadInputError(
            Problem(
                where="--gpus",
                what=f"{gpus} GPUs do not fill whole nodes of {per_node}",
                hint=f"use {gpus - gpus % per_node} or {gpus + per_node - gpus % per_node}",
            )
        )
    return TEMPLATE.format(
        name=f"{_short_name(model)}-{gpus}x{gpu}",
        model=str(Path(model).resolve()) if model.endswith(".json") else model,
        gpu=gpu,
        nodes=gpus // per_node,
        gpus_per_node=per_node,
        global_batch_size=max(256, gpus * 8),
        precision="fp32" if gpu == "cpu" else "bf16",
        expert_model_parallel_size=next(ep for ep in (8, 4, 2, 1) if per_node % ep == 0 and experts % ep == 0),
    )


def _model(name: str) -> Architecture:
    """A preset, or the model of a Hugging Face config.json."""
    if not name.endswith(".json"):
        return _known(presets(), name, "--model")
    fields = model_fields(read_config(Path(name), where=f"--model {name}"), where=name)
    return Architecture.model_validate(fields)


def _short_name(model: str) -> str:
    """A config.json is called after its folder, which people call after the model."""
    path = Path(model)
    return safe_name(path.resolve().parent.name) if path.suffix == ".json" else model


def _known(rows: Mapping[str, Row], name: str, where: str) -> Row:
    if name in rows:
        return rows[name]
    near = nearest(name, rows)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(rows)}"
    raise BadInputError(Problem(where=where, what=f"{name!r} is not known", hint=hint))
