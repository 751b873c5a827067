"""Checks that the tuner finds and fixes a real wall: four small clusters of a real Slurm.

    python -m benchmarks.real_walls [WALL…] [--budget 8] [--keep FOLDER]

Two nodes in network namespaces of this machine, joined by links as slow as the scene requires, with a processor each
(root, Slurm, ip, tc and taskset). On each, one recipe of the same small mixture of experts with one mistake that a
known change of one knob fixes. `moe-autotune run` tunes it inside an allocation; it prints the wall of the first trace,
the change that fixed it with the predicted and obtained gain, and the speed-up of the whole study.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from analyzers.diagnosis import Wall
from tests.trainer.launchers.slurm.cluster import NODES, Cluster, why_not
from tests.trainer.launchers.slurm.network import Network

MODEL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 128,
}
BURST = {"engine": "megatron", "launcher": "slurm", "warmup_steps": 1, "measure_steps": 3, "trace_steps": 1}
DEADLINE_S = 300
STUDY_S = 3600
LOG_TAIL_CHARACTERS = 4000


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One mistake in a recipe. `fixed_by`: the knobs that fix it, any of them."""

    wall: Wall
    mistake: str
    fixed_by: frozenset[str]
    rate: str | None = None  # rate of each node's link
    nodes: int = NODES  # number of nodes; a single one has both processors
    memory_gib: float = 2.0
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, Any] = field(default_factory=dict)

    def network(self) -> Network:
        processors = tuple(map(str, range(NODES))) if self.nodes == NODES else ()
        return Network(nodes=NODES, rate=self.rate, processors=processors)

    def recipe(self) -> dict[str, Any]:
        return {
            "name": f"real-{self.wall}",
            "model": MODEL | self.model,
            "cluster": {"gpu": "cpu", "nodes": self.nodes, "gpus_per_node": 1, "memory_gib": self.memory_gib},
            "training": {"seq_length": 256, "global_batch_size": 16, "micro_batch_size": 2, "precision": "fp32"}
            | self.training,
            "parallelism": {"expert_model_parallel_size": self.nodes},
            "knobs": self.knobs,
            "burst": BURST | {"deadline_s": DEADLINE_S},
        }


SCENES = (
    Scene(
        wall=Wall.COMMUNICATION,
        mistake="experts spread over a link of 40 Mbit/s",
        rate="40mbit",
        training={"global_batch_size": 8},
        fixed_by=frozenset({"expert_model_parallel_size"}),
    ),
    Scene(
        wall=Wall.HOST,
        mistake="tiny micro batches, and garbage collected before each step",
        training={"seq_length": 32, "micro_batch_size": 1},
        model={"hidden_size": 64, "moe_ffn_hidden_size": 64},
        knobs={"manual_gc": True, "manual_gc_interval": 1},
        fixed_by=frozenset({"manual_gc_interval", "micro_batch_size"}),
    ),
    Scene(
        wall=Wall.MEMORY,
        mistake="everything is recomputed under a limit that has room",
        memory_gib=1.0,
        model={"hidden_size": 512, "moe_ffn_hidden_size": 512},
        training={"global_batch_size": 8, "micro_batch_size": 4},
        knobs={"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        fixed_by=frozenset({"recompute_granularity"}),
    ),
    Scene(
        wall=Wall.COMPUTE,
        mistake="one thread where there are two processors, experts that get few tokens",
        nodes=1,
        model={"num_layers": 2, "hidden_size": 512, "moe_ffn_hidden_size": 256, "num_moe_experts": 32},
        training={"seq_length": 128, "micro_batch_size": 1},
        fixed_by=frozenset({"threads_per_rank", "micro_batch_size", "moe_grouped_gemm"}),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Played:
    """Result of a scene. Gains are fractions of throughput; None if no trial fixed the mistake."""

    scene: Scene
    named: str
    share: float
    because: str
    fix: str = ""
    predicted: float | None = None
    obtained: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    bursts: int = 0

    @property
    def right(self) -> bool:
        return self.named == self.scene.wall and self.obtained is not None


def play(scene: Scene, folder: Path, *, budget: int, quiet: bool = False) -> Played:
    """Tunes the scene's recipe on its own cluster.

    Raises RuntimeError, with the logs' last lines, if the tuner fails.
    """
    recipe, study = folder / "recipe.yaml", folder / "study"
    recipe.write_text(yaml.safe_dump(scene.recipe()))
    (folder / "slurm").mkdir()
    slurm = Cluster(folder=folder / "slurm", network=scene.network())
    tuner = [sys.executable, "-m", "autotune.cli", "run", str(recipe), "--budget", str(budget), "--study", str(study)]
    try:
        slurm.start()
        with slurm.allocation() as variables, (folder / "tuner.log").open("wb") as log:
            shown = log if quiet else None
            env = {**os.environ, **variables}
            done = subprocess.run(tuner, env=env, stdout=shown, stderr=shown, timeout=STUDY_S)
        if done.returncode != 0:
            raise RuntimeError(f"the tuner ended with {done.returncode}\n{_log_tails(folder)}")
    finally:
        slurm.stop()
    return judged(
        scene, json.loads((study / "report.json").read_text()), bursts=len(list((study / "bursts").iterdir()))
    )


def _log_tails(folder: Path) -> str:
    """Returns the last lines of the logs of the tuner and of the ranks of its last burst."""
    bursts = sorted((folder / "study/bursts").glob("*"))
    logs = [folder / "tuner.log", *(sorted((bursts[-1] / "log").glob("*")) if bursts else ())]
    said = (f"{log.name}:\n{log.read_text(errors='replace')[-LOG_TAIL_CHARACTERS:]}" for log in logs if log.is_file())
    return "\n".join(said)


def judged(scene: Scene, report: dict[str, Any], *, bursts: int) -> Played:
    """Compares the study's report with the expected result of the scene."""
    trials = {trial["number"]: trial for trial in report["trials"]}
    first = next(trial["diagnosis"] for trial in trials.values() if trial["diagnosis"])
    wall = first["walls"][0] if first["walls"] else {"share": 0.0}
    fixing = next((trial for trial in trials.values() if _is_fixed_by(scene, trial)), None)
    interval = report["speedup_ci"]
    return Played(
        scene=scene,
        named=first["wall"],
        share=wall["share"],
        because=first["because"],
        fix=_words(scene, fixing) if fixing else "",
        predicted=fixing["predicted"]["gain"] if fixing else None,
        obtained=_rate(fixing) / _rate(trials[fixing["parent"]]) - 1 if fixing else None,
        speedup=report["speedup"],
        interval=(interval[0], interval[1]) if interval else None,
        bursts=bursts,
    )


def _is_fixed_by(scene: Scene, trial: dict[str, Any]) -> bool:
    return trial["verdict"] == "accepted" and not scene.fixed_by.isdisjoint(trial["changes"])


def _words(scene: Scene, trial: dict[str, Any]) -> str:
    """Returns the fix and its changes of knobs in `fixed_by`."""
    moved = (f"{knob} {was} → {now}" for knob, (was, now) in trial["changes"].items() if knob in scene.fixed_by)
    return f"{trial['fix']}: {', '.join(moved)}"


def _rate(trial: dict[str, Any]) -> float:
    return float(trial["outcome"]["tokens_per_s_per_gpu"])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"


def table(played: list[Played]) -> Table:
    shown = Table("mistake", "first trace names", "fixed by", "predicted", "obtained", "study", "bursts")
    for one in played:
        low, high = one.interval or (0.0, 0.0)
        study = f"{one.speedup:.2f}× ({low:.2f}–{high:.2f})" if one.speedup else "-"
        named = f"{one.named}, {one.share:.0%}"
        gains = (_percent(one.predicted), _percent(one.obtained))
        shown.add_row(one.scene.mistake, named, one.fix or "nothing", *gains, study, str(one.bursts))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walls", nargs="*", metavar="WALL", help=", ".join(scene.wall for scene in SCENES))
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a folder for the studies; else they are thrown away")
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    scenes = [scene for scene in SCENES if not asked.walls or scene.wall in asked.walls]
    with tempfile.TemporaryDirectory(prefix="real-walls-") as name:
        played = []
        for scene in scenes:
            folder = (asked.keep or Path(name)) / str(scene.wall)
            folder.mkdir(parents=True)
            played.append(play(scene, folder, budget=asked.budget))
            Console(width=170).print(table(played), highlight=False)
    sys.exit(0 if all(one.right for one in played) else 1)


if __name__ == "__main__":
    main()
