"""Classifies the host's activity by the name of a call, range or operator (host_activities.csv)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from analyzers.names import tables

PROFILER = "profiler"
MODULE_LOADING = "module_loading"
ALLOCATOR = "allocator"
SYNCHRONISING = "synchronising_call"
LAUNCHING = "launching"
OPERATORS = "operators"
PYTHON = "python"
OUTSIDE_CALLS = "outside_calls"  # takes the place of PYTHON if operators were not recorded


@dataclass(frozen=True, kw_only=True)
class HostActivity:
    """One row of host_activities.csv: the host events of one activity, found by a pattern of their names."""

    activity: str
    events: str  # a field of Timeline
    anywhere: bool  # true: on any thread; false: only on threads that launch work
    pattern: re.Pattern[str]


@cache
def activities() -> tuple[HostActivity, ...]:
    """Returns the rows in order: the first one that covers a moment decides."""
    return tuple(
        HostActivity(
            activity=row["activity"],
            events=row["events"],
            anywhere=row["threads"] == "any",
            pattern=re.compile(row["pattern"]),
        )
        for row in tables.rows("host_activities.csv")
    )


def is_call(name: str, activity: str) -> bool:
    """Returns true if a runtime call of this name is the activity."""
    return any(row.pattern.search(name) for row in activities() if row.activity == activity and row.events == "calls")
