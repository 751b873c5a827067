"""Rows of `guides.csv` on measured runs: offload, EP overlap, unbalanced routers, headline figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.plan.document import planned
from benchmarks.guides.answer import EVEN_LOAD, Answer, Ask, compared, holds, recipe_of, together
from benchmarks.published_runs import read_pairs, read_runs
from trainer.engines.simulated.step import Simulation
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.not_priced import not_priced
from trainer.estimate.plan.feasible import fewest_nodes
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.machine import Machine
from trainer.recipe.source import Source

OFFLOADED = {0.25: (1.871, 3.8), 0.5: (2.484, 7.6), 0.75: (3.187, 11.6), 1.0: (4.189, 15.3)}  # share: step s, GB saved
PLAIN_S = 0.996  # step of the same recipe without offload, s
GB = 1e9
OPEN = 0.25  # accepted error if some settings are not published


BATCHES = (4, 8, 12, 16, 24, 32, 64)


def _offloading(share: float, batch: int) -> Recipe:
    """Returns Qwen3-30B on two nodes of H100, TP2 PP2 EP4, with `share` of the optimizer offloaded."""
    knobs: dict[str, Any] = EVEN_LOAD | {"sequence_parallel": True, "use_precision_aware_optimizer": True}
    if share:
        knobs |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": share}
    training = {"seq_length": 4096, "global_batch_size": batch, "precision": "bf16"}
    return recipe_of("qwen3-30b-a3b", "h100", 16, each=8, training=training, knobs=knobs, tp=2, etp=1, pp=2, ep=4)


def _over_plain(step_s: Callable[[Recipe], float]) -> Answer:
    """Compares step times relative to no offload.

    The batch is not published: the one with the nearest step time is used.
    """
    batch = min(BATCHES, key=lambda size: abs(step_s(_offloading(0.0, size)) - PLAIN_S))
    plain = step_s(_offloading(0.0, batch))
    found = [step_s(_offloading(share, batch)) / plain for share in OFFLOADED]
    return compared(found, [published / PLAIN_S for published, _ in OFFLOADED.values()], within=0.15)


def optimizer_offload() -> Answer:
    """Compares time by the estimate, time by the simulation, and memory."""
    peaks = {share: estimate_memory(_offloading(share, 8)).peak_gib * 2**30 / GB for share in (0.0, *OFFLOADED)}
    saved = compared(
        [peaks[0.0] - peaks[share] for share in OFFLOADED], [gb for _, gb in OFFLOADED.values()], within=0.1
    )
    return together(
        _over_plain(lambda recipe: estimate_time(recipe).step_s),
        _over_plain(lambda recipe: Simulation(recipe, Machine()).step_us * 1e-6),
        saved,
    )


BF16_GRADIENTS: dict[str, Any] = {
    "grad_reduce_in_fp32": False,
    "main_grads_dtype": "bfloat16",
    "use_precision_aware_optimizer": True,
    "use_distributed_optimizer": True,
}


def last_resort() -> Answer:
    """Answers whether `plan` offloads on GPU counts where users must.

    Gradients are in BF16 where FP32 ones alone would take most of the memory, because `plan` does not change numerics.
    """
    cases: tuple[tuple[str, int, str, dict[str, Any]], ...] = (
        ("qwen3-235b-a22b", 32, "bf16", {}),
        ("deepseek-v3", 96, "fp8_blockwise", BF16_GRADIENTS),
    )
    found = {}
    for model, gpus, precision, knobs in cases:
        training = {"seq_length": 4096, "global_batch_size": 16 * gpus, "precision": precision}
        plan = planned(recipe_of(model, "h100", gpus, each=8, training=training, knobs=knobs), top=3)
        proposed = any(choice.recipe.knob("optimizer_cpu_offload") for choice in plan.choices if choice.fits)
        nodes = fewest_nodes(plan.recipe)
        kind = "BF16" if knobs else "FP32"
        statement = f"{model}, gradients in {kind}: offload proposed on {gpus} H100"
        found[f"{statement} (the smallest doubling that fits: {nodes and 8 * nodes} GPUs)"] = proposed
    return holds(found)


def ep_overlap() -> Answer:
    """Compares Qwen3-30B on 16 H100, all-to-all: without EP overlap, with it, and with delayed weight gradients too."""
    runs = {run.row: run for run in read_pairs()}
    plain, overlapped = runs["E007 before"].recipe, runs["E007 after"].recipe
    recipes = (plain, overlapped, overlapped.replace({"delay_wgrad_compute": True}))
    return compared([estimate_time(each).step_s for each in recipes], [41.25, 31.31, 31.20], within=0.1)


FORCED_MFU, LEARNED_MFU = 0.324, 0.147


def busiest_expert() -> Answer:
    """Checks that an unbalanced load changes time and memory; the figures' own model is not in our tables."""
    knobs = EVEN_LOAD | {"moe_router_force_load_balancing": False}
    training = {"seq_length": 4096, "global_batch_size": 512, "precision": "bf16"}
    recipe = recipe_of("qwen3-30b-a3b", "gb200", 32, each=4, training=training, knobs=knobs, ep=32)
    low, high = (estimate_memory(recipe, imbalance=load).upper_gib for load in (1.0, 4.0))
    even, uneven = (estimate_time(recipe, imbalance=load).step_s for load in (1.0, 4.0))
    statement = f"and time, {uneven / even:.2f} times as long (published: {FORCED_MFU / LEARNED_MFU:.2f}, load unknown)"
    return holds({"a load of 4 moves memory": high > low, statement: uneven > even})


def muon() -> Answer:
    """Checks that Muon is priced or reported as not priced.

    No knob names the optimizer, only the command of the trainer.
    """
    data = _offloading(0.0, 8).model_dump()
    trainer = {"kind": "megatron-lm", "command": ["pretrain_gpt.py", "--optimizer", "dist_muon"]}
    recipe = recipe_from(Source(name="guides", data=data | {"trainer": trainer}))
    said = [each.setting for each in not_priced(recipe) if each.setting.startswith("optimizer ")]
    return holds({"differs from Adam in memory and time, or is said not to be priced": bool(said)})


HEADLINES = (("gb300", 1233.0), ("gb200", 1048.0))


def headlines() -> Answer:
    """Compares DeepSeek-V3 as in arXiv 2603.07685 (tables 11 and 20), and Qwen3-235B as in the model zoo."""
    shared: dict[str, Any] = EVEN_LOAD | {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"],
        "use_te_rng_tracker": True,
        "pipeline_model_parallel_layout": "Et*4|(tttt|)*14tmL",
        "use_precision_aware_optimizer": True,
    }
    own: dict[str, dict[str, Any]] = {
        "gb300": {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True},
        "gb200": {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    }
    found = []
    for gpu, _ in HEADLINES:
        training = {"seq_length": 4096, "global_batch_size": 8192, "precision": "mxfp8"}
        recipe = recipe_of("deepseek-v3", gpu, 256, each=4, training=training, knobs=shared | own[gpu], pp=4, ep=64)
        found.append(estimate_time(recipe, release="26.02").model_tflops_per_gpu)
    runs = [run for run in read_runs()[0] if run.recipe.name == "P0690"]
    qwen = [estimate_time(run.recipe, release=run.release).model_tflops_per_gpu for run in runs]
    figures = [rate for _, rate in HEADLINES] + [run.model_tflops_per_gpu for run in runs]
    return compared([*found, *qwen], figures, within=0.1)


def newest_release() -> Answer:
    """Compares DeepSeek-V3 on 256 GB300 in the newest release of the table, with the settings that recipes have."""
    runs = [run for run in read_runs()[0] if run.cell == "deepseek-v3 on gb300"]
    best = max(runs, key=lambda run: run.model_tflops_per_gpu)
    return together(
        compared([estimate_time(best.recipe).model_tflops_per_gpu], [1635.0], within=0.1),
        compared([planned(best.recipe, top=1).choices[0].model_tflops_per_gpu], [1635.0], within=0.1),
    )


ENGINEERS: tuple[tuple[int, int, int, dict[str, Any], float], ...] = (
    (1, 4, 4096, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, 1540.68),
    (2, 4, 4096, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, 1506.76),
    (2, 1, 2048, {"recompute_granularity": "selective", "recompute_modules": ["moe_act", "layernorm"]}, 1461.56),
    (1, 1, 2048, {"recompute_granularity": "selective", "recompute_modules": ["moe", "layernorm"]}, 1428.04),
)  # TP, micro batch, global batch, recompute, tokens/s/GPU


def engineers_log() -> Answer:
    """Compares Qwen3-235B on 256 H800, PP32 VPP3 EP8, in the software of 2025-09: issue 658 of Pai-Megatron-Patch with
    what its example script sets, which does not fuse the permutation. Part of what the issue adds to the script is not
    known."""
    knobs: dict[str, Any] = {
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_router_force_load_balancing": True,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "overlap_p2p_comm": True,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }
    found = []
    for tp, micro_batch, batch, recompute, _ in ENGINEERS:
        training = {"seq_length": 4096, "global_batch_size": batch, "micro_batch_size": micro_batch}
        own = knobs | recompute | {"sequence_parallel": tp > 1}
        sizes = {"tp": tp, "etp": 1, "pp": 32, "vpp": 3, "ep": 8}
        recipe = recipe_of("qwen3-235b-a22b", "h800", 256, each=8, training=training, knobs=own, **sizes)
        found.append(estimate_time(recipe, release="25.09").tokens_per_s_per_gpu)
    return compared(found, [rate for *_, rate in ENGINEERS], within=OPEN)


ASKS: dict[str, Ask] = {
    "OF1": optimizer_offload,
    "OF2": last_resort,
    "OV2": ep_overlap,
    "RO1": busiest_expert,
    "MU1": muon,
    "HL1": headlines,
    "HL2": newest_release,
    "GP2": engineers_log,
}
