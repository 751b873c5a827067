"""Formats times, shares and names for evidence."""

from __future__ import annotations

from collections.abc import Sequence

KIND_NAMES = {
    "ep_dispatch": "EP dispatch",
    "ep_combine": "EP combine",
    "ep_notify": "EP notify",
    "tp": "TP communication",
    "cp": "CP communication",
    "pp": "PP send/recv",
    "dp": "DP communication",
    "all_to_all": "all-to-all",
    "other": "communication of unknown kind",
}
ACTIVITY_NAMES = {
    "garbage_collection": "Python's garbage collector",
    "allocator": "cudaMalloc and cudaFree",
    "module_loading": "loading modules and kernels for their first launch",
    "compiling": "compiling",
    "profiler": "profiler overhead",
    "synchronising_call": "synchronizing calls",
    "launching": "launching work",
    "data_loading": "loading data",
    "operators": "the framework's operators",
    "python": "Python between operators",
    "outside_calls": "code outside CUDA calls (operators were not recorded)",
}
PART_NAMES = {  # parts of a step with an uninformative name
    "compute": "compute of every class (a slower device?)",
    "gemm": "GEMMs",
    "dense": "compute that does not depend on the routing",
    "routed": "compute on the routed tokens",
    "indexing": "indexing kernels",
    "elementwise": "elementwise kernels",
    "other": "kernels of unknown class",
    "graph": "CUDA graphs",
    "sync": "waiting for its own streams, copies or events",
    "unattributed": "idle time whose cause is not in the trace",
}


def part_name(part: str) -> str:
    """Returns the display name of a part of a rank's step: `experts`, `host:data_loading`, `ep_combine`."""
    what, _, activity = part.partition(":")
    if activity:
        return f"the {what} ({ACTIVITY_NAMES.get(activity, activity)})"
    return PART_NAMES.get(part) or KIND_NAMES.get(part) or part


def recorded(microbatches: int | None, traced: int | None, times: Sequence[float]) -> list[str]:
    """Returns a line on how much of each step a trace contains; empty if all of it.

    times: how often each window counts.
    """
    counted = f"repeated windows count {_from_to(times)} times" if times else ""
    if microbatches is None or traced is None or (traced == microbatches and not times):
        return [counted] if counted else []
    held = f"{traced} of {microbatches} micro batches were recorded"
    return [f"{held}; {counted}" if counted else f"{held}, without the windows that repeat: no figure is scaled"]


def _from_to(values: Sequence[float]) -> str:
    least, most = (f"{value:.4g}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def ms(us: float) -> str:
    """Returns milliseconds without insignificant digits: 140, 21, 3.2, 0.05."""
    value = us / 1000
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}"


def short(us: float) -> str:
    """Returns the duration of one kernel or launch with its unit: 8 µs, 38 µs, 1.2 ms."""
    return f"{us:.3g} µs" if us < 1000 else f"{ms(us)} ms"


def percent(share: float) -> str:
    digits = 0 if share >= 0.02 or share == 0 else 1
    return f"{100 * share:.{digits}f} %"
