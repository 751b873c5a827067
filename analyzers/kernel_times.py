"""The kernels that take longest, by what they are: of every class some, and of all together the longest."""

from __future__ import annotations

import numpy as np

from analyzers.diagnosis import KernelTime
from analyzers.kernels import COMMUNICATION, COMPUTE_CLASSES, KINDS, kernel
from analyzers.timeline import Labels, Spans

SHOWN_OF_A_CLASS = 5
SHOWN = 40
CLASSES = (*COMPUTE_CLASSES, *KINDS)  # what `label` numbers: behind the classes, communication of each kind


def kernel_times(events: Spans, label: Labels) -> tuple[KernelTime, ...]:
    """The longest kernels first, one for each name and class. label: int8[N], indices into CLASSES."""
    codes, position = np.unique(events.name.astype(np.int64) * len(CLASSES) + label, return_inverse=True)
    count = np.bincount(position, minlength=len(codes))
    total = np.bincount(position, weights=events.end_us - events.start_us, minlength=len(codes))
    name = [events.names[code] for code in (codes // len(CLASSES)).tolist()]
    classes = codes % len(CLASSES)
    longest = sorted(range(len(codes)), key=lambda k: (-total[k], name[k], classes[k]))
    chosen = set(longest[:SHOWN])
    for one in np.unique(classes).tolist():
        chosen.update([k for k in longest if classes[k] == one][:SHOWN_OF_A_CLASS])
    return tuple(_kernel_time(name[k], int(classes[k]), int(count[k]), float(total[k])) for k in longest if k in chosen)


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
