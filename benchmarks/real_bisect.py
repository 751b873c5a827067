"""Bisects planted regressions on real CPU ranks: unmodified Megatron-Core, two ranks of gloo, bursts of a few seconds.

    python -m benchmarks.real_bisect [CASE…] [--budget 14] [--keep FOLDER]

Each case is `moe-autotune bisect a.yaml b.yaml`: B has the planted change among others that do nothing, knobs and
variables alike. Two are in the environment (threads that spin while they wait, an allocator that returns every page),
one does not fit. Prints the answer with the effect, and the bursts. The effects are large because other processes of
the machine add noise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

BASE: dict[str, Any] = {
    "name": "real-bisect",
    "model": {
        "num_layers": 4,
        "hidden_size": 192,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 192,
    },
    "cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 2, "memory_gib": 2.0},
    "training": {"seq_length": 128, "global_batch_size": 16, "micro_batch_size": 4, "precision": "fp32"},
    "parallelism": {"expert_model_parallel_size": 2},
    "burst": {"engine": "megatron", "warmup_steps": 1, "measure_steps": 6, "trace_steps": 0, "deadline_s": 600},
}
INERT_KNOBS = {"moe_router_dtype": "fp32", "overlap_grad_reduce": True, "NCCL_NVLS_ENABLE": 1}
INERT_ENV = {"NCCL_DEBUG": "WARN", "CUDA_CACHE_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false", "TZ": "UTC"}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@dataclass(frozen=True, kw_only=True)
class Plant:
    """One planted change. `named`: a difference is guilty if its name starts with this; `both` is common to A and B."""

    name: str
    named: str
    knobs: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    both: dict[str, Any] = field(default_factory=dict)

    def recipes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns A and B."""
        a = BASE | {"knobs": self.both}
        b = BASE | {
            "knobs": self.both | INERT_KNOBS | self.knobs,
            "training": BASE["training"] | self.training,
            "burst": BASE["burst"] | {"env": INERT_ENV | self.env},
        }
        return a, b


PLANTS = (
    Plant(name="recompute", named="recompute_granularity", knobs=FULL),
    Plant(name="micro-batch", named="micro_batch_size", training={"micro_batch_size": 1}),
    Plant(name="gc", named="manual_gc", knobs={"manual_gc": True, "manual_gc_interval": 1}),
    Plant(
        name="threads",
        named="burst.env.OMP_WAIT_POLICY",
        env={"OMP_WAIT_POLICY": "active"},
        both={"threads_per_rank": 4},
    ),
    Plant(
        name="allocator",
        named="burst.env.MALLOC_MMAP_THRESHOLD_",
        env={"MALLOC_MMAP_THRESHOLD_": "4096"},
    ),
    # The longer sequence alone does not fit; the same number of shorter sequences does
    Plant(name="memory", named="seq_length", training={"micro_batch_size": 8, "seq_length": 4096}),
)


def bisected(plant: Plant, folder: Path, budget: int) -> dict[str, Any]:
    """Returns the document that the command printed. Raises CalledProcessError if it fails."""
    folder.mkdir(parents=True)
    for name, recipe in zip("ab", plant.recipes(), strict=True):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    words = ["bisect", "a.yaml", "b.yaml", "--study", "study", "--budget", str(budget), "--json"]
    command = [sys.executable, "-m", "autotune.cli", *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def line(plant: Plant, found: dict[str, Any]) -> str:
    """Returns the planted change, the answer, and whether they agree."""
    names = [name for each in found["culprits"] for name in each["differences"]]
    right = len(names) == 1 and names[0].startswith(plant.named)
    said = "undecided" if found["answered"] == "undecided" else "right" if right else "wrong"
    effects = [f"{100 * each['time']['change']:+.0f} %" for each in found["culprits"] if each["time"]]
    answer = f"{found['answered']}: {', '.join(names) or 'none'} {' '.join(effects)} {found['symptom'] or ''}"
    noise = f", noise {100 * found['noise']:.0f} %" if found["noise"] else ""
    count = f"{len(found['differences'])} differences, {len(found['bursts'])} bursts with the ends"
    return f"{plant.name:12} {said:9} {answer} ({count}{noise})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of planted changes; default all")
    parser.add_argument("--budget", type=int, default=14, help="bursts of each")
    parser.add_argument("--keep", type=Path, help="a new folder for the studies")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="real-bisect-") as scratch:
        root = given.keep or Path(scratch)
        for plant in PLANTS:
            if not given.cases or plant.name in given.cases:
                print(line(plant, bisected(plant, root / plant.name, given.budget)), flush=True)


if __name__ == "__main__":
    main()
