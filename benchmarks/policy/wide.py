"""Draws scenarios on clusters that differ widely from the tables, once, into `wide.csv`.

    python -m benchmarks.policy.wide

Every machine has 4 to 9 keys multiplied or divided by up to 2.5, and 2 to 5 others drawn evenly between bounds; each
scenario also has one trait of TRAITS in turn (slow hosts, a quarter of the network, tight memory, long sequences, a
hybrid, AMD GPUs, …). Half of the sizes are not powers of two, and about half of the models are given by fields only.
The first 40 rows are for development; of the 60 for judging, only figures over all of them are looked at.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.places import table_rows
from benchmarks.policy.scenarios import FACTORS, SIZES, STARTS, Scenario, scenario_of
from trainer.errors import ToolError
from trainer.estimate.plan.stages import balanced_layouts
from trainer.model.parameters import total_parameters
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine
from trainer.recipe.rules import check

TABLE = Path(__file__).with_name("wide.csv")
COLUMNS = (
    *("machine", "unseen", "trait", "model", "gpu", "nodes", "memory_gib", "seq_length", "global_batch_size"),
    *("precision", "start", "tp", "pp", "cp", "ep", "etp", "mbs", "pipeline"),
)
DEVELOPMENT, JUDGED = 40, 60
FAR = math.log(2.5)  # log distance of a moved key at most
NEAR = math.log(1.1)
MOVED, MOVED_OTHERS = (4, 9), (2, 5)  # least and most keys of a machine that differ: of the factors, and of OTHERS
OTHERS: dict[str, tuple[float, float]] = {  # bounds between which a value is drawn evenly
    "overlap.ep": (0.3, 1.0),
    "overlap.dp": (0.3, 1.0),
    "host.sync_us": (10.0, 100.0),
    "host.step_ms": (5.0, 150.0),
    "host.gc_ms": (20.0, 200.0),
    "host.jitter": (0.02, 0.08),
    "routing.skew": (0.3, 2.0),
    "memory.activations": (0.85, 1.25),
    "memory.fragmentation": (0.02, 0.08),
    "memory.outside_gib": (0.5, 6.0),
    "memory.second_step_gib": (0.2, 2.0),
    "noise.burst": (0.003, 0.015),
    "noise.step": (0.004, 0.02),
}
TRAITS: dict[str, dict[str, tuple[float, float]]] = {  # keys of the machine that a trait draws evenly between bounds
    "plain": {},
    "straggler": {},
    "slow host": {"host.launch": (1.8, 2.4)},
    "slow network": {"links.network": (0.2, 0.3)},
    "tight memory": {
        "memory.activations": (1.1, 1.3),
        "memory.outside_gib": (2.0, 6.0),
        "memory.fragmentation": (0.05, 0.1),
    },
    "slow HBM": {"compute.memory_bound": (0.4, 0.6), "compute.optimizer": (0.4, 0.7)},
    "long": {},
    "hybrid": {},
    "AMD": {},
    "large": {},
}
GPUS = ("h100", "h100", "h200", "h800", "b200", "b300", "gb200", "gb300", "h20", "a100-80gb")
AMD = ("mi300x", "mi325x", "mi355x")
PRESETS = (
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "deepseek-v2", "moonlight-16b-a3b", "gpt-oss-20b"),
    *("gpt-oss-120b", "glm-4.5-air", "glm-4.5", "mixtral-8x7b", "mixtral-8x22b", "kimi-k2", "minimax-m2", "dots.llm1"),
    *("hunyuan-a13b", "olmoe-1b-7b", "phi-3.5-moe", "ling-lite-1.5", "llama4-scout-17b-16e", "ernie-4.5-21b-a3b"),
)
HYBRIDS = ("qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b", "jamba-v0.1", "qwen3.5-35b-a3b", "qwen3.5-122b-a10b")
WORLDS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
LARGE = (1536, 2048, 3072, 4096)
LENGTHS = (2048, 4096, 4096, 8192, 16384, 32768)
LONG = (65536, 131072)
TOKENS_PER_GPU = (8192, 16384, 32768)
STATE_BYTES = 10.0  # least bytes per parameter of a rank: BF16 weights, sharded moments, gradients
STATE_SHARE = 0.4  # largest share of the cluster's memory for model states, so that something fits
TRIES = 400  # most jobs drawn in search of a legal recipe; a quarter as many sizes are drawn for each


def wide_scenarios(table: Path = TABLE) -> list[Scenario]:
    return [scenario_of(row, 500 + number, wide_machine) for number, row in enumerate(table_rows(table), 1)]


@cache
def wide_machine(name: str) -> Machine:
    """Returns the machine of a scenario's number and trait (`wide-7 slow host`), deterministically."""
    kind, _, trait = name.partition(" ")
    rng = random.Random(f"machine {kind}")
    chosen = rng.sample(FACTORS, rng.randint(*MOVED))
    drawn = {key: math.exp(rng.choice((-1, 1)) * rng.uniform(NEAR, FAR)) for key in chosen}
    others = rng.sample(tuple(OTHERS), rng.randint(*MOVED_OTHERS))
    drawn |= {key: rng.uniform(*OTHERS[key]) for key in others}
    drawn |= {key: rng.uniform(*between) for key, between in TRAITS[trait].items()}
    data: dict[str, Any] = {"name": kind}
    for key, value in drawn.items():
        section, field = key.split(".")
        data.setdefault(section, {})[field] = round(value, 3)
    if trait == "straggler":
        data["stragglers"] = [_straggler(rng)]
    return Machine.model_validate(data)


def _straggler(rng: random.Random) -> dict[str, Any]:
    where = rng.choice(("rank", "node"))
    what = rng.choice(("compute", "host", "network"))
    most = {"compute": 1.25, "host": 2.0, "network": 3.0}[what]
    return {where: rng.randint(0, 1), what: round(rng.uniform(1.05, most), 3)}


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Model, cluster and batch of a scenario, before its parallelism is chosen."""

    model: str | dict[str, Any]
    gpu: str
    nodes: int
    memory_gib: float | None
    seq_length: int
    global_batch_size: int
    precision: str

    def recipe(self, **parts: Any) -> Recipe:
        cluster = {"gpu": self.gpu, "nodes": self.nodes, "memory_gib": self.memory_gib}
        training = {
            "seq_length": self.seq_length,
            "global_batch_size": self.global_batch_size,
            "precision": self.precision,
            **parts.pop("training", {}),
        }
        return Recipe.model_validate(
            {"name": "drawn", "model": self.model, "cluster": cluster, "training": training} | parts
        )


def draw_rows() -> Iterator[dict[str, str]]:
    traits = tuple(TRAITS)
    for number in range(1, DEVELOPMENT + JUDGED + 1):
        trait = traits[number % len(traits)]
        rng = random.Random(f"wide {number}")
        row = next(found for _ in range(TRIES) if (found := _row(rng, trait, _job(rng, trait))))
        yield {"machine": f"wide-{number} {trait}", "unseen": "no" if number <= DEVELOPMENT else "yes", **row}


def _job(rng: random.Random, trait: str) -> _Job:
    gpu = rng.choice(AMD if trait == "AMD" else GPUS)
    model: str | dict[str, Any] = rng.choice(HYBRIDS if trait == "hybrid" else PRESETS)
    if trait not in ("hybrid", "large") and rng.random() < 0.5:
        model = _fields(rng)
    one = Recipe.model_validate({"name": "one", "model": model, "cluster": {"gpu": gpu}})
    world = rng.choice(LARGE if trait == "large" else WORLDS)
    length = rng.choice(LONG if trait == "long" else LENGTHS)
    nodes = max(1, world // one.hardware.gpus_per_node)
    batch = max(world * rng.choice(TOKENS_PER_GPU) // length, 16)
    tight = one.memory_limit_gib and rng.random() < 0.15
    return _Job(
        model=model,
        gpu=gpu,
        nodes=nodes,
        memory_gib=round(0.75 * (one.memory_limit_gib or 0.0), 1) if tight else None,
        seq_length=length,
        global_batch_size=batch,
        precision=rng.choice(("bf16", "bf16", *one.hardware.plan_precisions[:1])),
    )


def _fields(rng: random.Random) -> dict[str, Any]:
    """Draws the fields of a model that is not a preset."""
    hidden = rng.choice((1536, 2048, 2560, 3072, 4096, 5120, 6144))
    heads = hidden // 128
    experts = rng.choice((8, 16, 32, 48, 64, 96, 128, 160, 256))
    topk = min(rng.choice((1, 2, 4, 6, 8)), experts // 4)
    fields: dict[str, Any] = {
        "num_layers": rng.randint(16, 64),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "kv_channels": 128,
        "vocab_size": rng.choice((32000, 64000, 102400, 151936, 200064)),
        "num_moe_experts": experts,
        "moe_router_topk": topk,
        "moe_ffn_hidden_size": 128 * max(4, round(hidden * rng.uniform(1.5, 5.0) / topk / 128)),
        "ffn_hidden_size": 3 * hidden,
    }
    if rng.random() < 0.4:
        fields["moe_shared_expert_intermediate_size"] = fields["moe_ffn_hidden_size"]
    if rng.random() < 0.3:
        latent = {
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_head_dim": 128,
            "qk_pos_emb_head_dim": 64,
            "v_head_dim": 128,
        }
        return fields | {"multi_latent_attention": True} | latent
    return fields | {"num_query_groups": next(groups for groups in (8, 4, 2, 1) if heads % groups == 0)}


def _row(rng: random.Random, trait: str, job: _Job) -> dict[str, str] | None:
    """Returns a legal starting recipe for the job as a row; None if it is too large for its cluster, or none is
    found."""
    bare = job.recipe()
    total = total_parameters(bare.architecture)
    if total * STATE_BYTES > STATE_SHARE * (bare.memory_limit_gib or 0.0) * 2**30 * bare.world_size:
        return None
    for _ in range(TRIES // 4):
        start = rng.choice([name for name in STARTS if job.precision == "bf16" or name != "untuned"])
        sizes, pipeline = _sizes(rng, bare)
        recipe = _legal(job, start, sizes, pipeline)
        if recipe is not None:
            model = job.model if isinstance(job.model, str) else json.dumps(job.model)
            values = {
                "trait": trait,
                "model": model,
                "gpu": job.gpu,
                "nodes": job.nodes,
                "memory_gib": job.memory_gib or "",
                "seq_length": job.seq_length,
                "global_batch_size": job.global_batch_size,
                "precision": job.precision,
                "start": start,
                **sizes,
                "pipeline": pipeline,
            }
            return {name: str(value) for name, value in values.items()}
    return None


def _sizes(rng: random.Random, bare: Recipe) -> tuple[dict[str, int], str]:
    model, world = bare.architecture, bare.world_size
    tp = rng.choice((1, 1, 2, 4, 8))
    pp = rng.choice([size for size in (1, 1, 2, 3, 4, 6, 8, 12, 16) if size <= model.num_layers and world % size == 0])
    long = max(1, bare.training.seq_length // 8192)
    cp = rng.choice([size for size in (1, 2, 4, 8, 16) if size <= long])
    experts = model.num_moe_experts or 1
    ep = rng.choice([size for size in (1, 2, 3, 4, 6, 8, 16, 32, 64) if experts % size == 0])
    pipeline = ""
    if pp > 1 and model.num_layers % pp:
        pipeline = next(iter(balanced_layouts(model, bare.training.seq_length, pp=pp, vpp=1)), "")
    return {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": 1, "mbs": rng.choice((1, 1, 1, 2, 4))}, pipeline


def _legal(job: _Job, start: str, sizes: Mapping[str, int], pipeline: str) -> Recipe | None:
    knobs = STARTS[start] | {"sequence_parallel": sizes["tp"] > 1}
    if pipeline:
        knobs["pipeline_model_parallel_layout"] = pipeline
    try:
        recipe = job.recipe(
            training={"micro_batch_size": sizes["mbs"]},
            parallelism={SIZES[size]: value for size, value in sizes.items() if size in SIZES},
            knobs=knobs,
            burst={"engine": "simulated"},
        )
    except (ToolError, ValueError):
        return None
    return None if any(finding.kind == "error" for finding in check(recipe)) else recipe


def main() -> None:
    rows = list(draw_rows())
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
