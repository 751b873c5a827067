"""The kernels that take longest, by what they are: of every class some, and of all together the longest."""

from __future__ import annotations

import numpy as np

from analyzers.diagnosis import KernelTime
from analyzers.intervals import Floats
from analyzers.kernels import COMMUNICATION, COMPUTE_CLASSES, KINDS, kernel
from analyzers.timeline import Ints, Labels, Spans

SHOWN_OF_A_CLASS = 5
SHOWN = 40
CLASSES = (*COMPUTE_CLASSES, *KINDS)  # what `label` numbers: behind the classes, communication of each kind


def kernel_times(events: Spans, label: Labels) -> tuple[KernelTime, ...]:
    """The longest kernels first, one for each name and class. label: int8[N], indices into CLASSES."""
    codes, count, total = summed(events, events.name.astype(np.int64) * len(CLASSES) + label)
    name = [events.names[code] for code in (codes // len(CLASSES)).tolist()]
    classes = codes % len(CLASSES)
    longest = sorted(range(len(codes)), key=lambda k: (-total[k], name[k], classes[k]))
    chosen = set(longest[:SHOWN])
    for one in np.unique(classes).tolist():
        chosen.update([k for k in longest if classes[k] == one][:SHOWN_OF_A_CLASS])
    return tuple(_kernel_time(name[k], int(classes[k]), int(count[k]), float(total[k])) for k in longest if k in chosen)


def summed(events: Spans, key: Ints) -> tuple[Ints, Ints, Floats]:
    """The different keys, how many events have each, and their durations' sum (int64[K], int64[K], float64[K]).

    Durations are added in their own order: rounding must not depend on the order of events in the file.
    """
    took = events.end_us - events.start_us
    order = np.lexsort((took, key))
    codes, first, count = np.unique(key[order], return_index=True, return_counts=True)
    return codes, count, np.add.reduceat(took[order], first) if len(order) else took


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
