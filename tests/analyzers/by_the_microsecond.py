"""The partition by brute force: one boolean per microsecond and plain loops, to check the sorted sweeps.

It reads the drawn events themselves, whose times are whole microseconds, and shares no code with the analyzers except
the tables of names and three constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analyzers.intervals import Bools
from analyzers.names import kernels
from analyzers.one_rank.gaps import LAUNCH_LATENCY_US, TURNAROUND_US
from analyzers.one_rank.host import SLOW_LAUNCH_US
from tests.analyzers.drawing import Drawing

Event = dict[str, Any]
DEVICE = ("kernel", "gpu_memcpy")
SYNCHRONISING = ("cudaStreamSynchronize", "cudaMemcpy")
ALLOCATING = ("cudaMalloc", "cudaFree")
LAUNCHING = ("cudaLaunchKernel", "cudaGraphLaunch")


@dataclass
class Reference:
    """Partition of a drawing as booleans, one per microsecond from its first moment to its last."""

    origin: int
    parts: dict[str, Bools] = field(default_factory=dict)  # compute, communication, copies, and the causes of idle time
    activities: dict[str, Bools] = field(default_factory=dict)
    blocked: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))  # host in a synchronising call

    def us(self, what: Bools, start: float, duration: float) -> float:
        """Returns for how many microseconds a set is true within `duration` from `start`, which counts from the first
        event."""
        return float(what[round(start) : round(start + duration)].sum())


def reference(drawing: Drawing) -> Reference:
    """Returns the reference partition of a drawing with one device."""
    events = drawing.events
    origin = min(e["ts"] for e in events)
    size = max(e["ts"] + e["dur"] for e in events) - origin

    def when(chosen: Iterable[Event]) -> Bools:
        lit = np.zeros(size, dtype=bool)
        for e in chosen:
            lit[e["ts"] - origin : e["ts"] + e["dur"] - origin] = True
        return lit

    found = Reference(origin=origin)
    device = [e for e in events if e["cat"] in DEVICE]
    ran = [e for e in device if e["cat"] == "kernel"]
    is_communication: Callable[[Event], bool] = lambda e: kernels.kernel(e["name"]).compute_class == "communication"  # noqa: E731
    compute = when(e for e in ran if not is_communication(e))
    communication = when(e for e in ran if is_communication(e))
    copies = when(e for e in device if e["cat"] == "gpu_memcpy")
    busy = compute | communication | copies
    found.parts |= {
        "compute": compute,
        "exposed_communication": communication & ~compute,
        "exposed_copy": copies & ~compute & ~communication,
    }
    launch = {e["args"]["correlation"]: e for e in events if e["args"].get("correlation") and e["cat"] not in DEVICE}
    launchers = {launch[e["args"]["correlation"]]["tid"] for e in device if e["args"]["correlation"] in launch}
    found.activities, found.blocked = _activities(events, device, launch, launchers, when)
    _blame(found, events, device, launch, busy, when)
    return found


def _activities(
    events: list[Event],
    device: list[Event],
    launch: dict[int, Event],
    launchers: set[int],
    when: Callable[[Iterable[Event]], Bools],
) -> tuple[dict[str, Bools], Bools]:
    """Returns the host's activity by the first row that covers a moment, and where it blocked. The rest is `python`,
    or `outside_calls` where no operators were recorded."""
    numbered_alike = not any(e["cat"] == "cpu_op" for e in events) or any(
        e["cat"] == "cpu_op" and e["tid"] in launchers for e in events
    )

    def issuing(category: str) -> list[Event]:
        return [e for e in events if e["cat"] == category and (e["tid"] in launchers or not numbered_alike)]

    calls, ranges, ops = (issuing(category) for category in ("cuda_runtime", "user_annotation", "cpu_op"))
    if not numbered_alike:
        seen = {e["tid"] for e in events if e["cat"] in ("cpu_op", "user_annotation")} | launchers
        calls = [e for e in calls if e["tid"] in seen]
    seen_names: set[str] = set()
    first = []
    for e in sorted((e for e in device if e["cat"] == "kernel"), key=lambda e: _launched(e, launch)):
        call = launch.get(e["args"]["correlation"])
        if call is not None and e["name"] not in seen_names:
            seen_names.add(e["name"])
            first += [call] if call["dur"] > SLOW_LAUNCH_US else []
    blocking = [
        call
        for e in device
        if e["cat"] == "gpu_memcpy"
        and (call := launch.get(e["args"]["correlation"])) is not None
        and _end(call) >= _end(e)
    ]
    overheads = [e for e in events if e["cat"] == "overhead"]
    rows = {
        "profiler": when(e for e in overheads if e["name"] == "Buffer Flush"),
        "module_loading": when(e for e in overheads if e["name"] != "Buffer Flush")
        | when(e for e in calls if e["name"] == "cuModuleLoadData")
        | when(first),
        "garbage_collection": when(e for e in events if e["cat"] == "user_annotation" and e["name"] == "gc"),
        "allocator": when(e for e in calls if e["name"] in ALLOCATING),
        "synchronising_call": when(e for e in calls if e["name"] in SYNCHRONISING) | when(blocking),
        "data_loading": when(e for e in ranges if e["name"] == "get_batch"),
        "launching": when(calls),
        "operators": when(e for e in ops if e["name"].startswith("aten::")),
    }
    blocked = rows["synchronising_call"]
    taken = np.zeros_like(rows["profiler"])
    for name, lit in rows.items():
        rows[name] = lit & ~taken
        taken = taken | lit
    rows["python" if any(e["cat"] == "cpu_op" for e in events) else "outside_calls"] = ~taken
    return rows, blocked


def _blame(
    found: Reference,
    events: list[Event],
    device: list[Event],
    launch: dict[int, Event],
    busy: Bools,
    when: Callable[[Iterable[Event]], Bools],
) -> None:
    origin, size = found.origin, len(busy)
    steps = [e for e in events if e["name"].startswith("ProfilerStep")]
    begin = min(e["ts"] for e in (*steps, *device)) - origin
    end = max(_end(e) for e in (*steps, *device)) - origin
    known = {e["args"]["correlation"] for e in device}
    lost = sorted(
        e["ts"]
        for e in events
        if e["name"] in LAUNCHING
        and e["args"]["correlation"] not in known
        and not any(_overlap(e, launch[c]) for c in known if c in launch)
    )
    host, sync, unseen, turnaround = (np.zeros(size, dtype=bool) for _ in range(4))
    receives = [e for e in events if e["name"] == "gloo:recv"]
    received = np.zeros(size, dtype=bool)
    for start, stop in _gaps(busy, begin, end):
        enders = [e for e in device if e["ts"] - origin == stop]
        ready = min((_ready(e, device, launch, origin) for e in enders), default=math.inf)
        if ready == math.inf:
            until = stop if stop == end and not enders and any(c in launch for c in known) else start
        else:
            until = min(stop, round(ready + LAUNCH_LATENCY_US)) if ready > start else start
            sync[until:stop] = True
        host[start:until] = True
        after = _last_launch(device, launch, start, origin)
        pending = [t - origin for t in lost if t > after and t - origin < min(stop, ready)]
        seen_until = max(start, min(pending)) if pending else stop
        unseen[seen_until:stop] = True
        if ready != math.inf and seen_until - until <= TURNAROUND_US:
            turnaround[until:seen_until] = True
        ends = [_end(e) - origin for e in receives if _end(e) - origin <= stop]
        if ends and max(ends) > start:
            received[start : max(ends)] = True
    exchanging = when(e for e in events if e["name"] == "pp_send_recv") & found.blocked
    idle = np.zeros(size, dtype=bool)
    idle[begin:end] = ~busy[begin:end]
    bubble = idle & (exchanging | (received & when(receives)))
    host &= ~bubble & ~unseen & ~found.activities["profiler"]
    sync &= ~bubble & ~unseen
    found.parts |= {"idle": idle, "host": host, "sync": sync, "bubble": bubble, "turnaround": turnaround & ~bubble}
    found.parts["unattributed"] = idle & ~host & ~sync & ~bubble


def _end(event: Event) -> int:
    end: int = event["ts"] + event["dur"]
    return end


def _overlap(a: Event, b: Event) -> bool:
    return bool(a["ts"] < _end(b) and b["ts"] < _end(a))


def _launched(event: Event, launch: dict[int, Event]) -> float:
    call = launch.get(event["args"]["correlation"])
    return math.inf if call is None else float(call["ts"])


def _ready(event: Event, device: list[Event], launch: dict[int, Event], origin: int) -> float:
    correlation = event["args"]["correlation"]
    if correlation not in launch:
        return math.inf
    if any(e["args"]["correlation"] == correlation and e["ts"] < event["ts"] for e in device):
        return -math.inf
    return _end(launch[correlation]) - origin


def _last_launch(device: list[Event], launch: dict[int, Event], start: int, origin: int) -> float:
    """Returns when the device event that ended last by `start` was launched: at most `start`, -inf if no such event
    has a known launch."""
    before = [e for e in device if _end(e) - origin <= start and e["args"]["correlation"] in launch]
    latest = max((_end(e) for e in before), default=0)
    return min(max((_launched(e, launch) for e in before if _end(e) == latest), default=-math.inf), start + origin)


def _gaps(busy: Bools, begin: int, end: int) -> list[tuple[int, int]]:
    found, start = list[tuple[int, int]](), None
    for t in range(begin, end):
        if not busy[t] and start is None:
            start = t
        if busy[t] and start is not None:
            found.append((start, t))
            start = None
    return [*found, *([(start, end)] if start is not None else [])]
