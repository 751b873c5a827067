"""What a probe of the links between the nodes teaches before any burst: a lesson on two factors.

The probe's all-reduces run as the closed form's collectives do: each rank over its own NIC. Their rate over what the
tables give a collective is the factor of the network, their latency that of a collective. Of the other libraries on the
same links they tell less, hence the deviations.
"""

from __future__ import annotations

import math

from policies.belief.lesson import Lesson
from trainer.estimate.time.constants import constants
from trainer.estimate.time.links import across_gb_s
from trainer.probe.links import Links
from trainer.recipe import Recipe

SOURCE = "a probe of the links"
RATE_DEVIATION, LATENCY_DEVIATION = 0.15, 0.4  # of the logs: a library's own share; a ring's length and NCCL's protocol
FAR = 3.0  # the furthest a factor is moved, as a log: beyond it the probe measured something else


def lesson_of_links(links: Links, recipe: Recipe) -> Lesson | None:
    """None on CPUs, and where all nodes share one NVLink domain: nothing there goes over the network."""
    hardware = recipe.hardware
    if hardware.scaleout_gbit_s is None or hardware.nvlink_domain_gpus >= recipe.world_size:
        return None
    table = constants()
    logs = {
        "network": math.log(links.bandwidth_gb_s / across_gb_s(hardware, table, "collective")),
        "collective_latency": math.log(links.latency_us / table["collective_latency_us.network"]),
    }
    deviations = {"network": RATE_DEVIATION, "collective_latency": LATENCY_DEVIATION}
    kept = {name: log for name, log in logs.items() if abs(log) <= FAR}
    return Lesson(study=SOURCE, trials=0, mean=kept, deviation={name: deviations[name] for name in kept})
