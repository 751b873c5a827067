"""Reads published training runs as recipes: the data on which the step time is calibrated and judged.

A row is used if it is a pre-training run of a known model and layout; `published_knobs.py` finds its knobs. Every row
that is left out is counted with its reason. A cell is a model on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.places import DATA, data_file, table_rows
from benchmarks.published_knobs import published_knobs
from trainer.estimate.time.bound import family
from trainer.measured.software import release_named, releases
from trainer.model.flops import model_flops_per_token
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import known_hardware
from trainer.recipe.models import presets
from trainer.recipe.schema import Recipe

# Dense models are not presets of a tool for mixtures of experts, but their GEMMs run on the same GPUs. Source: the
# models' published configurations (layers, hidden, heads, groups, channels, ffn, vocabulary).
DENSE = {
    "llama3_8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "llama3_70b": (80, 8192, 64, 8, 128, 28672, 128256),
    "llama31_405b": (126, 16384, 128, 8, 128, 53248, 128256),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936),
}
# Hybrids without experts, as Megatron-Bridge's nemotron_h_provider.py has them.
HYBRID: dict[str, dict[str, Any]] = {
    "nemotronh_56b": {
        "hybrid": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
        "num_layers": 118,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_query_groups": 8,
        "ffn_hidden_size": 32768,
        "gated_linear_unit": False,
        "activation_func": "squared_relu",
        "mamba_num_heads": 256,
        "mamba_state_dim": 256,
        "position_embedding_type": "none",
        "vocab_size": 131072,
    }
}
MOE = {
    "deepseek_v3": "deepseek-v3",
    "gpt_oss_120b": "gpt-oss-120b",
    "mixtral_8x22b": "mixtral-8x22b",
    "moonlight-16b-a3b": "moonlight-16b-a3b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "qwen3_235b_a22b": "qwen3-235b-a22b",
    "nemotron_3_nano": "nemotron-3-nano-30b-a3b",
    "nemotron_3_ultra": "nemotron-3-ultra-550b-a55b",
    "qwen3_next_80b_a3b": "qwen3-next-80b-a3b",
    "qwen35_35b_a3b": "qwen3.5-35b-a3b",
}
PRECISIONS = {
    "bf16": "bf16",
    "fp8": "fp8_current",
    "fp8-cs": "fp8_current",
    "fp8-blockwise": "fp8_blockwise",
    "fp8-mx": "mxfp8",
    "fp8_mx": "mxfp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
COUNTS_AGREE = 0.025  # tokens rounded to integers change FLOPs per token by up to 1.8 %


# settings that tuned runs of the guides share
TUNED_SETTINGS: dict[str, Any] = {
    "moe_grouped_gemm": True,
    "moe_router_fusion": True,
    "moe_router_force_load_balancing": True,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "grad_reduce_in_fp32": False,
    "cross_entropy_loss_fusion": True,
    "cpu_affinity": "spread",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published measurement."""

    row: str
    cell: str  # model and GPU
    release: str  # a row of software.csv
    recipe: Recipe
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    trusted: bool
    matched: bool = False  # true for one side of a matched pair

    @property
    def family(self) -> str:
        """Returns the family of models that it is judged with: dense, MoE or hybrid."""
        return family(self.recipe.architecture)


def read_runs(*, facts: Path = DATA) -> tuple[list[Run], list[str]]:
    """Returns the runs of published_runs.csv, and why each of the other rows is left out."""
    rows = table_rows(data_file("published_runs.csv", folder=facts))
    counts = _counts(rows)
    runs: list[Run] = []
    left: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        why = _unusable(row) or _repeated(row, seen)
        if why:
            left.append(why)
        else:
            runs.append(_run(row, facts, counted=counts.get(_model_of_release(row))))
    return runs, left


# Matched A/B measurements of the same cells (effects.csv), which separate what whole recipes confound: fitted to, not
# judged by. Both sides of each: (id, column, knobs).
_HYBRIDEP = {
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_scope": ("moe_router", "moe_preprocess"),
    "moe_permute_fusion": True,
}
_ALLTOALL = {"moe_token_dispatcher_type": "alltoall", "cuda_graph_impl": "none", "moe_permute_fusion": False}
GUIDE_LAST = "P0738"
PAIRS: tuple[tuple[str, dict[str, Any]], ...] = (("E001", _HYBRIDEP), ("E007", _ALLTOALL))


def read_pairs(*, facts: Path = DATA) -> list[Run]:
    """Returns both sides of matched measurements, without and with EP overlap: Qwen3-30B on 16 H100 (BF16, EP16, micro
    batch 1, global batch 1024, balanced), and DeepSeek-V3 on 256 GB200, where overlap was "net negative" (E074): read
    as no gain over the guide's last step."""
    rows = {row["id"]: row for row in table_rows(data_file("effects.csv", folder=facts))}
    runs = []
    for name, knobs in PAIRS:
        for side, overlap in (("before", False), ("after", True)):
            seconds = float(rows[name][side]) * (1e-3 if rows[name]["unit"] == "ms" else 1.0)
            runs.append(_pair_run(f"{name} {side}", knobs | {"overlap_moe_expert_parallel_comm": overlap}, seconds))
    last = next(run for run in read_runs(facts=facts)[0] if run.row == GUIDE_LAST)
    overlapped = last.recipe.replace({"overlap_moe_expert_parallel_comm": True})
    both = (replace(last, row="E074 before"), replace(last, row="E074 after", recipe=overlapped))
    return [*runs, *(replace(each, matched=True) for each in both)]


def _pair_run(name: str, knobs: dict[str, Any], step_s: float) -> Run:
    recipe = Recipe.model_validate(
        {
            "name": name,
            "model": "qwen3-30b-a3b",
            "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 8},
            "training": {"seq_length": 4096, "global_batch_size": 1024, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": {"expert_model_parallel_size": 16},
            "knobs": TUNED_SETTINGS | knobs,
        }
    )
    tokens = 1024 * 4096 / 16 / step_s
    per_token = model_flops_per_token(recipe.architecture, 4096) / 1e12
    return Run(
        row=name,
        cell="qwen3-30b-a3b on h100",
        release="26.06",
        recipe=recipe,
        tokens_per_s_per_gpu=tokens,
        model_tflops_per_gpu=tokens * per_token,
        trusted=True,
        matched=True,
    )


def _unusable(row: dict[str, str]) -> str | None:
    key = row["model_key"]
    if "_vl_" in key:
        return "trains a model with images, whose encoder is in none of our tables"
    if not row["task"].lower().startswith("pre"):
        return "no pre-training run"
    if key not in MOE and key not in DENSE and key not in HYBRID:
        return f"architecture of {key} is not in our tables or not GPT-style"
    if not (row["pp"] or row["fsdp"] not in ("", "0")) or not row["gbs"] or not row["tp"]:
        return "layout or batch not published"
    if "not in perf recipe set" in row["recipe_ref"]:
        return "knobs not published: a functional recipe, none of NVIDIA's tuned ones"
    if re.search(r"\bdet\b", row["notes"]):
        return "measured with deterministic kernels, which nobody tunes for speed"
    if "nsys" in row["notes"] and "no-nsys" not in row["notes"]:
        return "measured under a profiler"
    return None


def _repeated(row: dict[str, str], seen: set[tuple[Any, ...]]) -> str | None:
    """Returns the reason to leave out a row that repeats a measurement of another table of its release; else None."""
    names = ("release", "model_key", "gpu", "num_gpus", "model_tflops_per_gpu", "tp", "pp", "ep", "gbs", "mbs")
    key = tuple(row[name] for name in names)
    if key in seen:
        return "printed twice in its release"
    seen.add(key)
    return None


def _model_of_release(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("release", "model_key", "variant", "seq_len"))


def _counts(rows: Sequence[dict[str, str]]) -> dict[tuple[str, ...], float]:
    """Returns the TFLOP per token that each release counts a model: the median of its rows. Single rows print tokens
    of an older release with new TFLOPS; where a release prints such a row again, the tokens follow the TFLOPS."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["derived_tflop_per_token"]:
            found.setdefault(_model_of_release(row), []).append(float(row["derived_tflop_per_token"]))
    return {model: median(each) for model, each in found.items()}


def _run(row: dict[str, str], facts: Path, *, counted: float | None) -> Run:
    recipe = _recipe(row, facts)
    tflops = float(row["model_tflops_per_gpu"])
    ours = model_flops_per_token(recipe.architecture, recipe.training.seq_length) / 1e12
    # Some tables count sliding windows or biases otherwise; within the rounding of tokens the counts agree
    per_token = counted if counted and abs(counted / ours - 1) > COUNTS_AGREE else ours
    return Run(
        row=row["row_id"],
        cell=f"{MOE.get(row['model_key'], row['model_key'])} on {row['gpu']}",
        release=release_named(row["release"]),
        recipe=recipe,
        tokens_per_s_per_gpu=tflops / per_token,
        model_tflops_per_gpu=tflops,
        trusted=row["trust"] == "dev",
    )


def _recipe(row: dict[str, str], facts: Path) -> Recipe:
    key, gpu = row["model_key"], row["gpu"]
    sizes = {name: int(float(row[column] or 1)) for name, column in _SIZES.items()}
    precision = _precision(row)
    each = min(known_hardware()[gpu].gpus_per_node, int(row["num_gpus"]))
    if key in MOE:
        model: Any = presets()[MOE[key]]
        if "w/o MTP" in row["variant"] or row["release"] == "mcore-doc":
            model = model.model_copy(update={"mtp_num_layers": None})
    else:
        model = Architecture.model_validate(HYBRID[key]) if key in HYBRID else _dense(DENSE[key])
    knobs = published_knobs(row, MOE.get(key, key), model, precision, sizes, facts)
    return Recipe.model_validate(
        {
            "name": row["row_id"],
            "model": model.model_dump(),
            "cluster": {"gpu": gpu, "nodes": int(row["num_gpus"]) // each, "gpus_per_node": each},
            "training": {
                "seq_length": int(float(row["seq_len"] or 4096)),
                "global_batch_size": int(float(row["gbs"])),
                "micro_batch_size": int(float(row["mbs"] or 1)),
                "precision": precision,
            },
            "parallelism": {
                "tensor_model_parallel_size": sizes["tp"],
                "pipeline_model_parallel_size": sizes["pp"],
                "context_parallel_size": sizes["cp"],
                "expert_model_parallel_size": sizes["ep"] if key in MOE else 1,
                "expert_tensor_parallel_size": int(float(row["etp"] or 1)) if key in MOE else None,
                "virtual_pipeline_model_parallel_size": None
                if "pipeline_model_parallel_layout" in knobs or sizes["vp"] < 2
                else sizes["vp"],
            },
            "knobs": knobs,
            "burst": {"engine": "simulated"},
        }
    )


_SIZES = {"tp": "tp", "pp": "pp", "cp": "cp", "vp": "vp", "ep": "ep"}


def _dense(sizes: tuple[int, ...]) -> Any:
    names = (
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "ffn_hidden_size",
        "vocab_size",
    )
    return Architecture.model_validate(dict(zip(names, sizes, strict=True)))


def _precision(row: dict[str, str]) -> str:
    """Returns the row's precision.

    Tables without a precision column print per-tensor FP8 first and the block-scaled format in parentheses.
    """
    written = row["precision"].lower()
    if written:
        return PRECISIONS[written]
    if "parenthesised" not in row["notes"] or "un-parenthesised" in row["notes"] or "primary" in row["notes"]:
        return "fp8_current"
    return "fp8_blockwise" if row["gpu"] == "h100" else "mxfp8"


CONTRADICTING = 0.2  # difference of two runs' throughput, as a fraction of the slower


def contradicting(runs: Sequence[Run]) -> list[Run]:
    """Returns runs that no model can fit at once: CONTRADICTING apart with one recipe on one release, or slower by that
    factor on the next release with as many GPUs and the same precision, layout and batch."""
    order = list(releases())
    found = {
        row
        for first, second in permutations(runs, 2)
        if second.tokens_per_s_per_gpu * (1 + CONTRADICTING) < first.tokens_per_s_per_gpu
        and _setting(first) == _setting(second)
        and _comparable(first, second, releases_on=order.index(second.release) - order.index(first.release))
        for row in (first.row, second.row)
    }
    return [run for run in runs if run.row in found]


def _comparable(first: Run, second: Run, *, releases_on: int) -> bool:
    return releases_on == 1 or (releases_on == 0 and first.recipe.digest() == second.recipe.digest())


def _setting(run: Run) -> tuple[Any, ...]:
    training = run.recipe.training
    return run.cell, run.recipe.world_size, training.model_dump_json(), run.recipe.parallelism.model_dump_json()


def cells(runs: list[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Yields the runs by cell, in the order of their first rows."""
    for cell in dict.fromkeys(run.cell for run in runs):
        yield cell, [run for run in runs if run.cell == cell]
