"""Writes a recipe as text with comments on what is worth changing, for `init`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

TEMPLATE = """\
# A training recipe. Only `model` and `cluster` are required; what is left out has its default
# (recipe.resolved.yaml of a study shows every one). Knobs keep Megatron's names.
{because}name: {name}
model: {model}    # a preset, a config.json, or a mapping of Megatron-Core's own fields: num_layers, hidden_size, ...
cluster: {{gpu: {gpu}, nodes: {nodes}, gpus_per_node: {gpus_per_node}}}    # memory_gib: less than the GPU has

training:
  seq_length: {seq_length}
  global_batch_size: {global_batch_size}    # affects convergence: never changed unless removed from tune.freeze
  micro_batch_size: {micro_batch_size}
  precision: {precision}    # fp32 bf16 fp16 fp8_blockwise fp8_current fp8_delayed mxfp8 nvfp4

parallelism:    # tp pp cp ep etp vpp are accepted too
{parallelism}
knobs:    # anything else of Megatron's that is not at its default
{knobs}
burst:    # one short training run; the tuner runs many
  engine: {engine}    # megatron (real training), command (your own script: see `import`) or simulated
  launcher: {launcher}
  warmup_steps: 3
  measure_steps: 8    # timed
  trace_steps: 2    # profiled, after and apart from the timed ones
  deadline_s: 900

tune:
  freeze: [global_batch_size, seq_length]    # knobs that must stay as they are
  allow: training-equivalent    # or numerics-changing (FP8 and the like), or benchmark-only
  patience: 5    # proposals without a gain before the search stops
  sampler: surrogate    # chooses the next recipe: surrogate (learned from bursts), or Optuna's tpe, gp, random
"""
# Comment of each knob that a starter recipe may have; other knobs have none
WORDS = {
    "use_distributed_optimizer": "shard optimizer state over data-parallel ranks",
    "overlap_grad_reduce": "overlap gradient reduction with backward",
    "overlap_param_gather": "overlap parameter gathering with forward",
    "moe_grouped_gemm": "all experts of a rank in one GEMM",
    "moe_router_dtype": "scores of many experts tie in 16 bits",
    "moe_token_dispatcher_type": "flex: DeepEP or HybridEP, which have to be installed; alltoall needs neither",
    "overlap_moe_expert_parallel_comm": "overlap EP communication of one micro batch with compute of another",
    "overlap_p2p_comm": "overlap PP send/recv with compute",
    "pipeline_model_parallel_layout": "layers of each stage: E embedding, t a layer, m MTP, L loss",
    "sequence_parallel": "MoE with TP needs it",
    "recompute_granularity": "recompute activations in backward: full saves most memory and costs most time",
    "recompute_modules": "modules whose activations are recomputed",
    "cuda_graph_impl": "record launches once and replay them",
    "CUDA_DEVICE_MAX_CONNECTIONS": "Megatron-LM requires it with TP or CP before Blackwell",
}


def written(recipe: Recipe, *, model: str, because: Sequence[str]) -> str:
    """Returns the text, which `load_recipe` reads back.

    `model`: its name in the text; `because`: lines of the comment at the top.
    """
    return TEMPLATE.format(
        because="".join(f"# {line}\n" for line in because),
        name=recipe.name,
        model=model,
        gpu=recipe.cluster.gpu_name,
        nodes=recipe.cluster.nodes,
        gpus_per_node=recipe.ranks_per_node,
        engine=recipe.burst.engine,
        launcher="local" if recipe.cluster.nodes == 1 else "slurm    # several nodes: inside an allocation of them",
        parallelism="".join(_parallelism(recipe)),
        knobs="".join(_knobs(recipe)),
        **recipe.training.model_dump(mode="json"),
    )


def _parallelism(recipe: Recipe) -> Iterator[str]:
    for name, value in recipe.parallelism.model_dump(mode="json", exclude_none=True).items():
        yield f"  {name}: {value}\n"


def _knobs(recipe: Recipe) -> Iterator[str]:
    for name, value in recipe.knobs.items():
        if value != KNOBS[name].default:
            words = f"    # {WORDS[name]}" if name in WORDS else ""
            yield f"  {name}: {_scalar(value)}{words}\n"


def _scalar(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("...\n").rstrip()
