"""The work of a rank's device as sets of time, in one form for GPUs and for ranks that compute on CPUs.

`gpu.work` and `cpu.work` make it from a Timeline; the breakdown measures these sets within any window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from analyzers.diagnosis import Coverage, KernelTime
from analyzers.intervals import EMPTY, Intervals, intersect, merge, subtract
from analyzers.kernel_classes import KINDS
from analyzers.timeline import Ints, Labels, Spans


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Sets of time of one rank.

    compute_by_class and exposed_by_kind are disjoint sets that add up to compute and to exposed communication,
    gemm_by_precision to the class gemm. communication_by_kind is the time as it ran, which may overlap. `recompute` is
    the time in which forward work was recomputed, whatever else the device did.
    """

    compute_by_class: Mapping[str, Intervals]
    communication_by_kind: Mapping[str, Intervals]
    gemm_by_precision: Mapping[str, Intervals] = field(default_factory=dict)
    copies: Intervals
    to_host: Intervals = EMPTY  # the copies from device to host memory
    from_host: Intervals = EMPTY
    graphs: Intervals = EMPTY
    recompute: Intervals = EMPTY
    recompute_issue: Intervals = EMPTY  # the host issuing recomputed forward work
    short_kernels: Intervals = EMPTY  # compute in kernels shorter than SHORT_KERNEL_US
    collectives: Spans  # each communication, to match it with other ranks'
    collective_kind: Ints  # int64[len(collectives)], an index into KINDS
    collective_thread: Ints  # int64[len(collectives)], the host thread's lane that launched it, -1 if not known
    collective_message: Ints  # int64[len(collectives)], an index into the timeline's messages or -1
    coverage: Coverage
    kernels: tuple[KernelTime, ...] = ()
    label: Labels | None = (
        None  # int8[M]: class of each device event, an index into kernel_times.CLASSES; -1: copies, graphs
    )

    @cached_property
    def compute(self) -> Intervals:
        return merge(self.compute_by_class.values())

    @cached_property
    def communication(self) -> Intervals:
        return merge(self.communication_by_kind.values())

    @cached_property
    def exposed_by_kind(self) -> Mapping[str, Intervals]:
        return disjoint(((k, self.communication_by_kind.get(k, EMPTY)) for k in KINDS), besides=self.compute)

    @cached_property
    def exposed_communication(self) -> Intervals:
        return subtract(self.communication, self.compute)

    @cached_property
    def exposed_copies(self) -> Intervals:
        return subtract(self.copies, merge((self.compute, self.communication)))

    @cached_property
    def busy(self) -> Intervals:
        return merge((self.compute, self.communication, self.copies))

    @cached_property
    def recomputing(self) -> Intervals:
        """Returns the time of compute and exposed communication that belong to recompute."""
        return intersect(self.recompute, merge((self.compute, self.exposed_communication)))


def disjoint(sets: Iterable[tuple[str, Intervals]], besides: Intervals = EMPTY) -> dict[str, Intervals]:
    """Returns each set without the time of earlier ones and of `besides`; leaves out empty sets."""
    taken = besides
    parts: dict[str, Intervals] = {}
    for name, members in sets:
        own = subtract(members, taken)
        if len(own):
            parts[name] = own
            taken = merge((taken, own))
    return parts


def grouped(spans: Spans, label: Ints, names: tuple[str, ...]) -> dict[str, Intervals]:
    """Returns the time covered by the events of each label: label is int64[N], an index into `names`."""
    return {names[code]: spans.covered(label == code) for code in np.unique(label).tolist()}
