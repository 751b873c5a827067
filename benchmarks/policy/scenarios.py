"""Scenarios: a model on a simulated cluster with a bad starting recipe, one row of `scenarios.csv` each, never redrawn.

A machine is a packaged file, or `drawn-N`: the default machine with 5 to 9 keys multiplied or divided by 1.2 to 1.6 and
1 to 4 others drawn between bounds, with seed N. Rows marked unseen are for judging only: no constant of a policy was
chosen by looking at them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.places import table_rows
from trainer.recipe import Recipe
from trainer.recipe.load_machine import load_machine
from trainer.recipe.machine import Machine
from trainer.recipe.rules.examples import FULL

TABLE = Path(__file__).with_name("scenarios.csv")
SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
SOME = {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")}
OVERLAPPED = {"overlap_grad_reduce": True, "overlap_param_gather": True}
FUSED = {"moe_permute_fusion": True, "moe_router_fusion": True, "cross_entropy_loss_fusion": True}
ALWAYS = {"use_distributed_optimizer": True, "moe_grouped_gemm": True, "moe_router_dtype": "fp32"}
STARTS: dict[str, dict[str, Any]] = {  # a recipe's bad settings, in addition to its sizes
    "full-recompute": ALWAYS | OVERLAPPED | FUSED | FULL,
    "much-tp": ALWAYS | OVERLAPPED | FUSED | SOME,
    "much-pp": ALWAYS | OVERLAPPED | FUSED | SOME,
    "far-experts": ALWAYS | OVERLAPPED | FUSED | SOME,  # EP beyond the NVLink domain over NCCL
    "no-overlap": ALWAYS | SOME,
    "too-large": ALWAYS | OVERLAPPED | FUSED,
    "untuned": {"moe_router_dtype": "fp32"},  # Megatron's defaults
}
NEAR, FAR = math.log(1.2), math.log(1.6)  # log distance of a drawn key from the default
FACTORS = (
    *("compute.dense_gemm", "compute.grouped_gemm", "compute.half_rows", "compute.half_width", "compute.attention"),
    *("compute.memory_bound", "compute.quantize", "compute.optimizer", "links.nvlink", "links.network", "links.pcie"),
    *("links.latency", "links.half_message", "links.alltoall", "links.deepep", "links.hybridep"),
    *("overlap.sm_contention", "overlap.slowed", "host.launch"),
)
OTHERS: dict[str, tuple[float, float]] = {  # bounds between which a value is drawn evenly
    "overlap.ep": (0.5, 0.9),
    "overlap.dp": (0.4, 0.9),
    "host.sync_us": (10.0, 60.0),
    "host.gc_ms": (20.0, 120.0),
    "routing.skew": (0.4, 1.2),
    "memory.activations": (0.9, 1.2),
    "memory.outside_gib": (0.5, 4.0),
    "noise.burst": (0.004, 0.012),
    "noise.step": (0.006, 0.015),
}
MOVED, MOVED_OTHERS = (5, 9), (1, 4)  # least and most keys of a drawn machine that differ: of FACTORS, and of OTHERS


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One tuning problem. `recipe` holds the machine; bursts, data and samplers are drawn from `seed`."""

    name: str
    start: str
    unseen: bool
    recipe: Recipe
    seed: int

    @property
    def machine(self) -> Machine:
        return self.recipe.burst.machine or Machine()


def scenarios(table: Path = TABLE) -> list[Scenario]:
    return [scenario_of(row, seed, machine_named) for seed, row in enumerate(table_rows(table), 1)]


def scenario_of(row: Mapping[str, str], seed: int, named: Callable[[str], Machine]) -> Scenario:
    """Returns the scenario of a row of `scenarios.csv` or `wide.csv`; `named` returns a machine by name."""
    machine = named(row["machine"])
    is_preset = not row["model"].startswith("{")
    sizes = {SIZES[size]: int(row[size]) for size in SIZES}
    knobs = STARTS[row["start"]] | {"sequence_parallel": int(row["tp"]) > 1}
    if row["pipeline"]:
        knobs["pipeline_model_parallel_layout"] = row["pipeline"]
    model_name = row["model"] if is_preset else "fields"
    cluster: dict[str, Any] = {"gpu": row["gpu"], "nodes": int(row["nodes"])}
    if row.get("memory_gib"):
        cluster["memory_gib"] = float(row["memory_gib"])
    training = {
        "seq_length": int(row["seq_length"]),
        "global_batch_size": int(row["global_batch_size"]),
        "micro_batch_size": int(row["mbs"]),
        "precision": row["precision"],
    }
    data = {
        "name": f"{model_name}-{row['gpu']}",
        "model": row["model"] if is_preset else json.loads(row["model"]),
        "cluster": cluster,
        "training": training,
        "parallelism": sizes,
        "knobs": knobs,
        "burst": {"engine": "simulated", "machine": machine.model_dump(exclude_defaults=True)},
    }
    recipe = Recipe.model_validate(data)
    name = f"{model_name} {recipe.world_size}x{row['gpu']} {row['machine']}"
    return Scenario(name=name, start=row["start"], unseen=row["unseen"] == "yes", recipe=recipe, seed=seed)


@cache
def machine_named(name: str) -> Machine:
    """Returns the packaged machine of this name, or the machine drawn for `drawn-N`."""
    kind, _, seed = name.partition("-")
    return drawn_machine(int(seed)) if kind == "drawn" else load_machine(name)


def drawn_machine(seed: int, *, far: float = FAR) -> Machine:
    """Returns the machine drawn with this seed, deterministically. `far` is the maximum |log factor| of a key."""
    rng = random.Random(f"machine {seed}")
    drawn = {key: math.exp(rng.choice((-1, 1)) * rng.uniform(NEAR, far)) for key in _some(rng, FACTORS, MOVED)}
    drawn |= {key: rng.uniform(*OTHERS[key]) for key in _some(rng, tuple(OTHERS), MOVED_OTHERS)}
    data: dict[str, Any] = {"name": f"drawn-{seed}"}
    for key, value in drawn.items():
        section, name = key.split(".")
        data.setdefault(section, {})[name] = round(value, 3)
    return Machine.model_validate(data)


def _some(rng: random.Random, keys: tuple[str, ...], least_and_most: tuple[int, int]) -> list[str]:
    return rng.sample(keys, rng.randint(*least_and_most))
