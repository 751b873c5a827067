"""Refuses traces of different jobs, which must not be averaged or matched.

Two files are of different jobs if both are of the same rank, name different world sizes or were recorded at different
times, or if they have no ranks and exchange nothing. One file is one job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from analyzers.errors import TraceError
from analyzers.one_rank.digest import Digest

SINCE_1970_US = 1e15  # a larger value (after 2001) is Unix time; other clocks start with the capture
# traces whose times are further apart are of different jobs: the clocks of a cluster's nodes differ by less
MAX_APART_US = 60e6
HINT = "name the traces of one job, one for each rank; of a study, one burst: STUDY/bursts/0001"
APART_HINT = f"{HINT}. `moe-autotune compare` compares two"


def refuse_several_jobs(digests: Sequence[Digest]) -> None:
    """Raises TraceError, with both file names, if two files are of different jobs."""
    for k, one in enumerate(digests):
        for other in digests[:k]:
            if one.report.path == other.report.path:
                continue
            for differs in DIFFERENCES:
                if why := differs(one, other):
                    raise TraceError(Path(one.report.path), why, hint=HINT if differs is _same_rank else APART_HINT)


def _same_rank(one: Digest, other: Digest) -> str:
    if one.rank is None or one.rank != other.rank:
        return ""
    return f"is of rank {one.rank}, as is {other.report.path}"


def _other_size(one: Digest, other: Digest) -> str:
    if one.world_size is None or other.world_size is None or one.world_size == other.world_size:
        return ""
    sizes = f"{one.world_size} ranks, that one {other.world_size}"
    return f"is from another job than {other.report.path}: this one has {sizes}"


def _other_time(one: Digest, other: Digest) -> str:
    """Returns why two traces are not of one job: they were recorded more than MAX_APART_US apart. '' if they were not,
    or if a clock does not tell the date."""
    if min(one.origin_us, other.origin_us) < SINCE_1970_US:
        return ""
    earlier, later = sorted((one, other), key=lambda digest: digest.origin_us)
    gap_us = later.origin_us - (earlier.origin_us + earlier.report.span.end_us)
    if gap_us < MAX_APART_US:
        return ""
    return f"is from another job than {other.report.path}: they were recorded {_apart(gap_us / 1e6)} apart"


def _unrelated(one: Digest, other: Digest) -> str:
    for digest in (one, other):
        if digest.rank is not None or len(digest.collectives.start_us):
            return ""
    return (
        f"is from another job than {other.report.path}, as far as the traces show: "
        "neither has a rank, and they do not communicate"
    )


DIFFERENCES: tuple[Callable[[Digest, Digest], str], ...] = (_same_rank, _other_size, _other_time, _unrelated)


def _apart(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"
