"""Measures one way of reading a trace, in this process: CPU seconds and peak memory, imports not counted.

    python benchmarks/trace_readers.py ours|hta|json|typed TRACE...

Imports nothing of the project at the top, so that another library can be measured with the Python of its own
environment. Prints one JSON document.
"""

from __future__ import annotations

import gzip
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Read = Callable[[list[Path]], Any]


def ours() -> Read:
    """Returns a reader that makes the whole diagnosis with its JSON, as `diagnose --json` does."""
    analysis, msgspec = importlib.import_module("analyzers.analysis"), importlib.import_module("msgspec")
    return lambda paths: msgspec.json.encode(analysis.analyze(paths))


def hta() -> Read:
    """Returns a reader by HolisticTraceAnalysis: parse, temporal breakdown, overlap of communication and compute,
    kernel breakdown."""
    trace_analysis = importlib.import_module("hta.trace_analysis")

    def read(paths: list[Path]) -> None:
        trace = trace_analysis.TraceAnalysis(
            trace_files={rank: str(path) for rank, path in enumerate(paths)}, trace_dir=str(paths[0].parent)
        )
        trace.get_temporal_breakdown(visualize=False)
        trace.get_comm_comp_overlap(visualize=False)
        trace.get_gpu_kernel_breakdown(visualize=False)

    return read


def plain_json() -> Read:
    def read(paths: list[Path]) -> None:
        with gzip.open(paths[0]) as file:
            json.load(file)

    return read


def typed() -> Read:
    """Returns a reader that decodes the whole file at once into msgspec structs of the needed fields, and no more."""
    json_events, msgspec = (importlib.import_module(name) for name in ("analyzers.readers.json_events", "msgspec"))
    decoder = msgspec.json.Decoder(json_events.Document)
    return lambda paths: decoder.decode(gzip.decompress(paths[0].read_bytes()))


WAYS: dict[str, Callable[[], Read]] = {"ours": ours, "hta": hta, "json": plain_json, "typed": typed}


def cpu_s() -> float:
    """Returns user + system seconds of this process and its finished children."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_mb() -> float:
    """Returns the peak memory of this process, MB; ru_maxrss would include the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def main() -> None:
    read = WAYS[sys.argv[1]]()
    imported_mb = peak_mb()
    cpu, wall = cpu_s(), time.perf_counter()
    read([Path(name) for name in sys.argv[2:]])
    figures = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_s() - cpu, "imported_mb": imported_mb}
    child_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(json.dumps({**figures, "peak_mb": peak_mb(), "child_mb": child_mb}))


if __name__ == "__main__":
    main()
