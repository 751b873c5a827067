"""Rows of `guides.csv` on models, GPUs, dispatchers, and combinations that rules know."""

from __future__ import annotations

from typing import Any

from autotune.check.frameworks import findings_of_framework
from autotune.estimate.document import estimated
from autotune.init.starter import starter
from autotune.plan.document import planned
from benchmarks.guides.answer import EVEN_LOAD, Answer, Ask, holds, recipe_of, together
from trainer.errors import BadInputError
from trainer.frameworks.packing import PACKED_WITH_GRAPHS
from trainer.legality import findings_of
from trainer.recipe.announced import announced
from trainer.recipe.hardware import known_hardware
from trainer.recipe.hugging_face import model_types
from trainer.recipe.knobs import KNOBS
from trainer.recipe.load import recipe_from
from trainer.recipe.rules.check import check, errors_of
from trainer.recipe.source import Source

# model_type of the language model's part of a configuration, as transformers and the models' own files write it
FAMILIES = (
    *("qwen3_next", "qwen3_5_moe_text", "nemotron_h", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "minimax_m2"),
    *("kimi_k2", "ernie4_5_moe", "bailing_moe_v2"),
)
GPUS = ("a100-40gb", "a100-80gb", "h20", "h800", "gh200-96gb", "gh200-144gb", "mi300x", "mi325x", "mi355x")
TRAINING: dict[str, Any] = {"seq_length": 4096, "global_batch_size": 256, "precision": "bf16"}


def families() -> Answer:
    unknown = [name for name in FAMILIES if name not in model_types()]
    refused = []
    for name in ("qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b"):
        if errors_of(starter(model=name, gpu="h100", gpus=32).recipe):
            refused.append(name)
    return together(
        holds({f"config.json of every family is read (unknown: {', '.join(unknown) or 'none'})": not unknown}),
        holds({f"init writes legal hybrids (refused: {', '.join(refused) or 'none'})": not refused}),
    )


def packing() -> Answer:
    """Checks packed sequences, given by arguments of the user's command, and which recompute `plan` chooses first."""
    graphed = EVEN_LOAD | {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]}
    data = recipe_of("qwen3-30b-a3b", "h100", 16, each=8, training=TRAINING, knobs=graphed, ep=8).model_dump()
    trainer = {"kind": "megatron-lm", "command": ["pretrain_gpt.py", "--sft"]}
    packed = recipe_from(Source(name="guides", data=data | {"trainer": trainer, "burst": {"engine": "command"}}))
    named = [each for each in findings_of(packed) if each.rule == PACKED_WITH_GRAPHS]
    unpriced = [each.setting for each in estimated(packed).document["not_priced"]]
    training = TRAINING | {"seq_length": 262144, "global_batch_size": 64}
    plan = planned(recipe_of("qwen3-235b-a22b", "gb200", 256, each=4, training=training, knobs={}), top=5)
    again = [choice.recipe.knob("recompute_modules") or () for choice in plan.choices]
    full = [choice for choice in plan.choices if choice.recipe.knob("recompute_granularity") == "full"]
    return holds(
        {
            "check names packing beside graphs": bool(named),
            "estimate says that packing is not priced": "--sft" in unpriced,
            "plan repeats no attention at 256K": not full and not any("core_attn" in modules for modules in again),
        }
    )


def half_precision() -> Answer:
    knobs = EVEN_LOAD | {"overlap_moe_expert_parallel_comm": True}
    training = TRAINING | {"precision": "fp16"}
    recipe = recipe_of("qwen3-30b-a3b", "h100", 16, each=8, training=training, knobs=knobs, ep=16)
    return holds({"FP16 with EP overlap is legal": not errors_of(recipe)})


def delayed_gradients() -> Answer:
    knobs = EVEN_LOAD | {
        "overlap_moe_expert_parallel_comm": True,
        "delay_wgrad_compute": True,
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn", "moe_router"],
        "use_te_rng_tracker": True,
    }
    recipe = recipe_of("gpt-oss-20b", "h100", 16, each=8, training=TRAINING, knobs=knobs, ep=16)
    said = [f for f in findings_of_framework(recipe, "megatron-bridge") if "delay_wgrad_compute" in f.knobs]
    return holds({"check --for megatron-bridge names it with attention biases": bool(said)})


WANTED = {"h100": "deepep", "b200": "deepep", "gb200": "hybridep", "gb300": "hybridep"}


def dispatchers() -> Answer:
    found = {}
    for gpu, wanted in WANTED.items():
        nodes = known_hardware()[gpu].gpus_per_node
        recipe = recipe_of(
            "deepseek-v3", gpu, 256, each=nodes, training=TRAINING | {"global_batch_size": 4096}, knobs={}
        )
        plan = planned(recipe, top=1)
        first = plan.choices[0].recipe
        kind = str(first.knob("moe_token_dispatcher_type"))
        chosen = str(first.knob("moe_flex_dispatcher_backend")) if kind == "flex" else kind
        why = next((note for note in plan.assumptions if "DeepEP" in note), "")
        found[f"{gpu}: {wanted} (plan's first choice: {chosen}{why and ', with its evidence'})"] = (
            chosen == wanted or bool(why)
        )
    return holds(found)


def gpus() -> Answer:
    given = {"name": "own", "memory_gib": 80, "bf16_tflops": 500, "hbm_tb_s": 3, "nvlink_gb_s": 300}
    try:
        recipe_of("qwen3-30b-a3b", given, 8, each=8, training=TRAINING, knobs={}, ep=8)
        described = True
    except BadInputError:
        described = False
    said = {f"{name} by name": name in known_hardware() for name in GPUS} | {"any GPU by its figures": described}
    return holds(said | {"vr200 by name is refused with the figures that are not published": "vr200" in announced()})


def silent_damage() -> Answer:
    knobs: dict[str, Any] = {
        "fp8_param_gather": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
    }
    training = TRAINING | {"precision": "mxfp8"}
    recipe = recipe_of("qwen3-30b-a3b", "b200", 16, each=8, training=training, knobs=knobs, ep=8)
    named = [finding for finding in check(recipe) if {"fp8_param_gather", "overlap_param_gather"} <= {*finding.knobs}]
    return holds(
        {
            "check names MXFP8 parameters gathered without DP overlap": bool(named),
            "hierarchical CP without its sizes is refused": "hierarchical_context_parallel_sizes" in KNOBS,
        }
    )


ASKS: dict[str, Ask] = {
    "HY1": families,
    "LC5": packing,
    "AT1": half_precision,
    "OV1": delayed_gradients,
    "DI1": dispatchers,
    "GP1": gpus,
    "SW1": silent_damage,
}
