"""Selects the kernels that take longest: some of every class, and the longest of all classes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from analyzers.diagnosis import KernelTime
from analyzers.intervals import Floats
from analyzers.kernel_classes import COMMUNICATION, COMPUTE_CLASSES, KINDS
from analyzers.names.kernels import kernel
from analyzers.repeats import Repeats
from analyzers.timeline import Ints, Labels, Spans, in_use

SHOWN_OF_A_CLASS = 5
SHOWN = 40
CLASSES = (*COMPUTE_CLASSES, *KINDS)  # indexed by `label`: compute classes, then kinds of communication


def kernel_times(events: Spans, label: Labels, repeats: Repeats) -> tuple[KernelTime, ...]:
    """Returns the longest kernels first, one per name and class. label: int8[N], indices into CLASSES."""
    used = in_use(len(events.names), events.name)
    place = np.zeros(len(events.names), dtype=np.int64)
    place[used] = np.arange(len(used))
    key = place[events.name] * len(CLASSES) + label
    count, total = np.bincount(key, repeats.weights(events.start_us)), summed_us(events, key, 0, repeats)
    some = np.flatnonzero(count)
    found = [
        _kernel_time(events.names[used[k // len(CLASSES)]], k % len(CLASSES), round(count[k].item()), float(total[k]))
        for k in some.tolist()
    ]
    longest = sorted(found, key=lambda one: (-one.total_us, one.name, one.compute_class, one.kind or ""))
    shown_of = Counter[str]()
    return tuple(one for k, one in enumerate(longest) if _is_shown(k, one, shown_of))


def _is_shown(place: int, one: KernelTime, shown_of: Counter[str]) -> bool:
    of = one.kind or one.compute_class
    shown_of[of] += 1
    return place < SHOWN or shown_of[of] <= SHOWN_OF_A_CLASS


def summed_us(events: Spans, key: Ints, keys: int, repeats: Repeats) -> Floats:
    """Returns float64[keys]: the sum of durations for each key (integers[N], from 0).

    Sums whole nanoseconds, so that rounding does not depend on the order of events in the file.
    """
    nanoseconds = np.rint(repeats.lasting(events.start_us, events.end_us) * 1000)
    return np.bincount(key, weights=nanoseconds, minlength=keys) / 1000


def _kernel_time(name: str, label: int, count: int, total_us: float) -> KernelTime:
    is_communication = label >= len(COMPUTE_CLASSES)
    return KernelTime(
        name=name,
        compute_class=COMMUNICATION if is_communication else CLASSES[label],
        kind=CLASSES[label] if is_communication else None,
        precision=kernel(name).precision,
        count=count,
        total_us=total_us,
    )
