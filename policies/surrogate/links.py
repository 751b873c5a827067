"""Derives a lesson from a probe of the links between nodes, before any burst.

The probe's all-reduces use the links as the closed form's collectives do, each rank over its own NIC: the ratio of
measured to tabulated bandwidth gives the factor of the network, that of latencies the factor of a collective's latency.
Other libraries use the same links differently, hence the deviations (judged). CPU ranks have one kind of link in the
closed form: with several ranks on a node the probe measures only the slower kind, and there is no lesson.
"""

from __future__ import annotations

import math

from policies.constants import constant
from policies.surrogate.lesson import Lesson
from trainer.estimate.time.constants import constants
from trainer.estimate.time.links import across_gb_s
from trainer.probe.links import Links
from trainer.recipe import Recipe

SOURCE = "a probe of the links"
# what the probe does not show: how a library uses a link; the length of a ring and NCCL's protocol
GPU_DEVIATIONS = {"network": 0.15, "collective_latency": 0.4}
CPU_DEVIATIONS = {"cpu_links": 0.3, "cpu_reduce": 0.3, "cpu_latency": 0.5}  # gloo's rate depends on the cores' load
PROBE_MAX_LOG_SHIFT = constant("probe_max_log_shift")


def lesson_of_links(links: Links, recipe: Recipe) -> Lesson | None:
    """Returns the lesson; None if the recipe's traffic does not use the probed links: all GPUs share one NVLink domain,
    or a node has several CPU ranks."""
    if recipe.hardware.is_cpu:
        return None if links.ranks_per_node > 1 else _lesson(_of_cpus(links), CPU_DEVIATIONS)
    if recipe.hardware.nvlink_domain_gpus >= recipe.world_size:
        return None
    return _lesson(
        {name: log for name, log in _of_gpus(links, recipe).items() if abs(log) <= PROBE_MAX_LOG_SHIFT}, GPU_DEVIATIONS
    )


def _lesson(logs: dict[str, float], deviations: dict[str, float]) -> Lesson:
    return Lesson(study=SOURCE, trials=0, mean=logs, deviation={name: deviations[name] for name in logs})


def _of_gpus(links: Links, recipe: Recipe) -> dict[str, float]:
    table = constants()
    return {
        "network": math.log(links.bandwidth_gb_s / across_gb_s(recipe.hardware, table, "collective")),
        "collective_latency": math.log(links.latency_us / table["collective_latency_us.network"]),
    }


def _of_cpus(links: Links) -> dict[str, float]:
    table = constants()
    return {
        "cpu_links": math.log(links.bandwidth_gb_s / table["cpu_gb_s"]),
        "cpu_reduce": math.log(links.bandwidth_gb_s / table["cpu_reduce_gb_s"]),
        "cpu_latency": math.log(links.latency_us / table["cpu_collective_us"]),
    }
