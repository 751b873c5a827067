"""Figures of an average step, read from an analysis, by which a fix proves that it acted.

One row a measure. All are taken on the slowest rank's average traced step; None where no trace says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analyzers.diagnosis import Partition
from policies.situation import Situation


@dataclass(frozen=True, kw_only=True)
class Measure:
    words: str
    unit: str
    read: Callable[[Partition], float]

    def of(self, situation: Situation) -> float | None:
        """The average over the traced steps of the rank where it is largest."""
        by_rank = [[self.read(step) for step in steps] for steps in situation.traced_steps]
        return max((sum(values) / len(values) for values in by_rank if values), default=None)

    def floor(self, situation: Situation) -> float:
        """Below this the figure is too small to prove anything: 0.5 % of the step."""
        return 0.005 * situation.step_us


def exposed(*kinds: str) -> Callable[[Partition], float]:
    return lambda step: sum(time.exposed_us for kind, time in step.communication_by_kind.items() if kind in kinds)


def busy(*kinds: str) -> Callable[[Partition], float]:
    return lambda step: sum(time.busy_us for kind, time in step.communication_by_kind.items() if kind in kinds)


EP_KINDS = ("ep_dispatch", "ep_combine", "ep_notify", "all_to_all")

MEASURES: dict[str, Measure] = {
    "recompute": Measure(words="time inside recompute", unit="us", read=lambda step: step.recompute_us),
    "ep_exposed": Measure(words="exposed EP communication", unit="us", read=exposed(*EP_KINDS)),
    "ep_busy": Measure(words="EP communication", unit="us", read=busy(*EP_KINDS)),
    "tp_exposed": Measure(words="exposed TP communication", unit="us", read=exposed("tp")),
    "tp_busy": Measure(words="TP communication", unit="us", read=busy("tp")),
    "cp_busy": Measure(words="CP communication", unit="us", read=busy("cp")),
    "pp_busy": Measure(words="PP send/recv", unit="us", read=busy("pp")),
    "dp_exposed": Measure(words="exposed DP communication", unit="us", read=exposed("dp")),
    "host_idle": Measure(
        words="idle time waiting for the host", unit="us", read=lambda step: step.idle_by_cause.host_us
    ),
    "compute": Measure(words="compute time", unit="us", read=lambda step: step.compute_us),
    "copy": Measure(words="copies", unit="us", read=lambda step: step.copy_us),
}
