"""Measures simulated bursts: CPU time without and with traces and their analysis, memory, size of the traces.

    python -m benchmarks.simulated_speed

Each cluster is simulated in a process of its own; CPU time is of all processes, the median of the bursts after the
first.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine
from trainer.recipe import Recipe

WANTED = "wanted: 0.05 CPU-s untraced; traced and analysed 0.5 up to 1,024 GPUs, 2 at 16,384; 300 MB; 5 MB a trace"
REPEATS = 5
CLUSTERS = {
    "qwen3-30b-a3b, 8 H100": ("qwen3-30b-a3b", "h100", 1, {"ep": 8}, 256),
    "deepseek-v3, 1,024 H100": ("deepseek-v3", "h100", 128, {"pp": 16, "vpp": 2, "ep": 64}, 8192),
    "deepseek-v3, 16,384 GB200": ("deepseek-v3", "gb200", 4096, {"pp": 8, "vpp": 4, "ep": 64}, 65536),
}


def recipe(name: str) -> Recipe:
    model, gpu, nodes, sizes, batch = CLUSTERS[name]
    names = {"pp": "pipeline_model_parallel_size", "vpp": "virtual_pipeline_model_parallel_size"}
    layout = {names.get(key, "expert_model_parallel_size"): size for key, size in sizes.items()}
    knobs: dict[str, bool | str] = {
        "use_distributed_optimizer": True,
        "moe_grouped_gemm": True,
        "overlap_grad_reduce": True,
    }
    if "vpp" in sizes:
        knobs["overlap_p2p_comm"] = True
        stages = sizes["pp"] * sizes["vpp"]
        layers = [61 // stages + (place < 61 % stages) for place in range(stages)]
        text = "|".join("t" * count for count in layers)
        layout.pop("virtual_pipeline_model_parallel_size")
        knobs |= {"pipeline_model_parallel_layout": f"E{text}mL"}
    return Recipe.model_validate(
        {
            "name": "speed",
            "model": model,
            "cluster": {"gpu": gpu, "nodes": nodes, "memory_gib": 100000.0},
            "training": {"seq_length": 4096, "global_batch_size": batch, "micro_batch_size": 1},
            "parallelism": {**layout, "expert_tensor_parallel_size": 1},
            "knobs": knobs,
            "burst": {"engine": "simulated"},
        }
    )


def measured(name: str) -> dict[str, float]:
    """Returns CPU seconds and MB of one cluster's bursts."""
    from analyzers import analyze

    traced, folder = recipe(name), Path(tempfile.mkdtemp())
    plain = traced.model_copy(update={"burst": traced.burst.model_copy(update={"trace_steps": 0})})
    engine = SimulatedEngine(folder)
    untraced_s, traced_s = list[float](), list[float]()
    for number in range(REPEATS + 1):
        since = _cpu_s()
        engine.run(Burst(number=number, recipe=plain, folder=folder / f"plain{number}"))
        untraced_s.append(_cpu_s() - since)
        since = _cpu_s()
        engine.run(Burst(number=number, recipe=traced, folder=folder / f"{number}"))
        analyze([folder / f"{number}"])
        traced_s.append(_cpu_s() - since)
    traces = list((folder / "0" / "trace").iterdir())
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "untraced_s": median(untraced_s[1:]),
        "traced_s": median(traced_s[1:]),
        "peak_mb": max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, children) / 1e3,
        "trace_mb": max(trace.stat().st_size for trace in traces) / 1e6,
    }


def _cpu_s() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def main() -> None:
    if sys.argv[1:]:
        print(json.dumps(measured(sys.argv[1])))
        return
    table = Table("cluster", "untraced, CPU-s", "traced and analysed, CPU-s", "peak, MB", "largest trace, MB", box=None)
    for name in CLUSTERS:
        command = [sys.executable, "-m", "benchmarks.simulated_speed", name]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        figures = (f"{found['untraced_s']:.3f}", f"{found['traced_s']:.2f}", f"{found['peak_mb']:.0f}")
        table.add_row(name, *figures, f"{found['trace_mb']:.2f}")
    console = Console(width=120)
    console.print(table)
    console.print(WANTED)


if __name__ == "__main__":
    main()
