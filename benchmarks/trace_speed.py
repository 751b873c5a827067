"""Measures reading traces: a whole diagnosis compared with other readers, long traces, many ranks; time and memory.

    python -m benchmarks.trace_speed [readers] [long] [ranks] [--hta-python PYTHON] [--traces DIR]

Each figure comes from a process of its own, the readers' interleaved, so that all have the same noise; CPU seconds
are user and system time of the process and its children after imports. HolisticTraceAnalysis is run from the
environment given, or from one made for it (package registry). The trace is a public one that is not in the
repository; if it is missing, the command prints what to put where. The long traces are copies of that one, in a
temporary folder (4.3 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import long_traces
from benchmarks.places import TRACES, real_trace

TRACE = "ddp_v100x2_rank1.json.gz"
SOURCE = (
    "tests/data/df_index_resolver/df_index_resolver.json.gz of facebookresearch/HolisticTraceAnalysis (MIT, "
    "f4d0062c) under this name"
)
HTA = "HolisticTraceAnalysis==0.5.0"
ROUNDS = 5
SIZES_GB = (0.5, 1.0, 2.0)
RANKS = (8, 64)
SCRIPT = Path(__file__).parent / "trace_readers.py"
Figures = dict[str, float]


def measured(way: str, paths: Sequence[Path], python: str = sys.executable) -> Figures:
    """Returns CPU and wall-clock seconds, and peak memory in MB, of one way of reading in a fresh process."""
    root = str(SCRIPT.parents[1])
    environment = {**os.environ, "PYTHONPATH": root} if python == sys.executable else dict(os.environ)
    command = [python, str(SCRIPT), way, *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(run.stdout.splitlines()[-1]))


def readers(trace: Path, folder: Path, hta_python: str | None) -> Iterator[str]:
    """Yields lines on CPU time and memory of each reader on one file, and the ratios that have a target."""
    pythons = dict.fromkeys(("ours", "typed", "json"), sys.executable) | {"hta": hta_python or _made_for_hta(folder)}
    rounds = [{way: measured(way, [trace], python) for way, python in pythons.items()} for _ in range(ROUNDS)]
    cpu = {way: statistics.median(one[way]["cpu_s"] for one in rounds) for way in pythons}
    peak = {way: max(_peak_mb(one[way]) for one in rounds) for way in pythons}
    for way in pythons:
        slowest, fastest = (pick(one[way]["cpu_s"] for one in rounds) for pick in (max, min))
        yield f"{way:6} {cpu[way]:6.2f} s CPU ({fastest:.2f} to {slowest:.2f}), peak {peak[way]:.0f} MB"
    over = {way: (cpu[way] / cpu["ours"], peak[way] / peak["ours"]) for way in pythons}
    yield "HTA over ours: {:.1f} x CPU (target 10), {:.1f} x memory (target 3)".format(*over["hta"])
    yield f"ours over typed parse: {1 / over['typed'][0]:.2f} x CPU (target at most 1.6)"


def long(trace: Path, folder: Path, _: str | None) -> Iterator[str]:
    """Yields lines on the diagnosis of long traces: peak memory, and time by size."""
    sizes = {folder / f"{gb}.json": int(gb * 1e9) for gb in SIZES_GB}
    packed = folder / "long.json.gz"
    long_traces.repeated(trace, {**sizes, packed: int(SIZES_GB[-1] * 1e9)})
    for path in (*sizes, packed):
        gb = sizes.get(path, sizes[list(sizes)[-1]]) / 1e9
        figures = measured("ours", [path])
        path.unlink()
        kind = "gzipped" if path is packed else "plain"
        yield (
            f"{gb:.1f} GB {kind:8} {figures['cpu_s']:6.1f} s CPU, {figures['cpu_s'] / gb:.1f} s/GB, "
            f"peak {_peak_mb(figures):.0f} MB (target 600)"
        )


def ranks(trace: Path, folder: Path, _: str | None) -> Iterator[str]:
    """Yields lines on the diagnosis of jobs: cores used, memory of the parent and of the largest worker."""
    for count in RANKS:
        job = folder / f"{count}-ranks"
        long_traces.ranks(trace, job, count)
        figures = measured("ours", [job])
        used, there = figures["cpu_s"] / figures["wall_s"], len(os.sched_getaffinity(0))
        yield (
            f"{count} ranks: {figures['wall_s']:6.1f} s wall, {figures['cpu_s']:.1f} s CPU, {used:.2f} of {there} cores"
            f", parent {figures['peak_mb']:.0f} MB, worker {figures['child_mb']:.0f} MB"
        )


PARTS: dict[str, Callable[[Path, Path, str | None], Iterator[str]]] = {"readers": readers, "long": long, "ranks": ranks}


def _peak_mb(figures: Figures) -> float:
    return max(figures["peak_mb"], figures["child_mb"])


def _made_for_hta(folder: Path) -> str:
    home = folder / "hta"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", HTA], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--hta-python", help=f"the Python of an environment that has {HTA}")
    parser.add_argument("--traces", type=Path, default=TRACES, help=f"the folder that holds {TRACE}; default {TRACES}")
    options = parser.parse_args()
    path = real_trace(TRACE, folder=options.traces, source=SOURCE)
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            for line in PARTS[name](path, Path(folder), options.hta_python):
                print(line, flush=True)


if __name__ == "__main__":
    main()
