"""Communication time of tokens, gradients and activations between ranks: bytes over the slowest link, by library.

A rank shares its NVLink port and its NIC with nothing else here. The bytes of a dispatch depend on the library: an
all-to-all sends every copy of a token, DeepEP and HybridEP one copy per destination rank, and over the network one per
destination node (arXiv 2603.07685 §4.2). Measured shares of the link's rate are in `links.csv` and become constants
named `link_share.<library>.<fabric>`.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.memory.activations import wide_bytes
from trainer.estimate.time.constants import Constants
from trainer.measured.architectures import known
from trainer.measured.links import copies
from trainer.model.layer import expert_input
from trainer.recipe.hardware import Hardware

GB = 1e9


def domain_of(candidates: Candidates) -> float:
    """Returns the number of GPUs in an NVLink domain."""
    hardware = candidates.base.hardware
    node = candidates.base.cluster.gpus_per_node or hardware.gpus_per_node
    return float(max(hardware.nvlink_domain_gpus, node))


def inside_gb_s(hardware: Hardware, constants: Constants, library: str) -> float | Floats:
    if hardware.is_cpu:
        return constants["cpu_gb_s"]
    return (
        known(hardware, hardware.nvlink_gb_s, "nvlink_gb_s")
        * constants[f"link_share.{library}.{hardware.nvlink_fabric}"]
    )


def across_gb_s(hardware: Hardware, constants: Constants, library: str) -> float | Floats:
    if hardware.is_cpu:
        return constants["cpu_gb_s"]
    if hardware.scaleout_gbit_s is None:  # only recipes for one node may lack it: nothing leaves the node
        return math.inf
    return hardware.scaleout_gbit_s / 8 * constants[f"link_share.{library}.network"]


def latencies_s(hardware: Hardware, constants: Constants, name: str) -> tuple[float | Floats, float | Floats]:
    """Returns (inside the NVLink domain, across domains) of `collective_latency_us`, `dispatch_latency_us` or
    `notify_us`, s."""
    if hardware.is_cpu:
        return (constants["cpu_collective_us"] * 1e-6,) * 2
    near, far = (constants[f"{name}.{fabric}"] * 1e-6 for fabric in ("nvlink", "network"))
    return near, far


def collective_s(candidates: Candidates, constants: Constants, gb: Floats, ranks: Floats, *, stride: Floats) -> Floats:
    """Returns the seconds of a ring collective that sends `gb` from each rank, among `ranks` ranks that are `stride`
    apart; 0 for one rank."""
    hardware = candidates.base.hardware
    inside = ranks * stride <= domain_of(candidates)
    rate = np.where(
        inside, inside_gb_s(hardware, constants, "collective"), across_gb_s(hardware, constants, "collective")
    )
    near_s, far_s = latencies_s(hardware, constants, "collective_latency_us")
    return np.where(ranks > 1, gb / rate + np.where(inside, near_s, far_s), 0.0)


def all_to_all_s(candidates: Candidates, constants: Constants, gb: Floats, ranks: Floats, *, stride: Floats) -> Floats:
    """Returns the seconds of an all-to-all that distributes `gb` of each rank evenly among `ranks` ranks `stride`
    apart, its own part included; 0 for one rank. Traffic inside the domain and traffic that leaves it use different
    links."""
    hardware = candidates.base.hardware
    near = np.clip(domain_of(candidates) / stride, 1.0, ranks)
    near_s, far_s = latencies_s(hardware, constants, "collective_latency_us")
    within = gb * (near - 1) / ranks / inside_gb_s(hardware, constants, "alltoall") + near_s
    across = gb * (1 - near / ranks) / across_gb_s(hardware, constants, "alltoall") + far_s
    return np.where(ranks > 1, np.where(near < ranks, np.maximum(within, across), within), 0.0)


def ring_s(candidates: Candidates, constants: Constants, gb: Floats, ranks: Floats, *, stride: Floats) -> Floats:
    """Returns the seconds of a hierarchical reduce-scatter or all-gather of `gb` per rank: a domain's share of the data
    leaves the NVLink domain, over the NICs of all its ranks."""
    hardware = candidates.base.hardware
    near = np.clip(domain_of(candidates) / stride, 1.0, ranks)
    far = ranks / near
    inside, across = (each(hardware, constants, "collective") for each in (inside_gb_s, across_gb_s))
    if hardware.is_cpu:
        inside = across = constants["cpu_reduce_gb_s"]
    within = gb * (near - 1) / near / inside
    between = gb / near * (far - 1) / np.maximum(far, 1.0) / across
    _, latency = latencies_s(hardware, constants, "collective_latency_us")
    return np.where(ranks > 1, np.maximum(within, between) + latency, 0.0)


def dispatch_s(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the seconds of one dispatch (or combine) of a layer's micro batch on a balanced rank; 0 where no token
    leaves."""
    model, hardware = candidates.base.architecture, candidates.base.hardware
    ranks = candidates.ep
    if model.num_moe_experts is None:
        return np.zeros(())
    # Sequence parallelism divides a rank's tokens over TP
    token_gb = candidates.tokens / candidates.tp * expert_input(model) * wide_bytes(candidates) / GB
    topk = float(model.moe_router_topk)
    # EP ranks are ETP apart, so that a domain holds its size / ETP of them
    near = np.minimum(ranks, np.maximum(1.0, domain_of(candidates) / candidates.etp))
    domains = np.maximum(1.0, np.ceil(ranks / near))
    limit = float(model.moe_router_group_topk or 1e9)
    near_s, far_s = latencies_s(hardware, constants, "dispatch_latency_us")
    total: Floats = np.zeros(())
    for library, chosen in _libraries(candidates).items():
        if not chosen.any():
            continue
        if copies()[library] == "all":
            inside, across = near - 1.0, ranks - near
        elif copies()[library] == "every":
            inside, across = topk * near / ranks * (near - 1) / near, topk * (1 - near / ranks)
        else:
            inside = _distinct(ranks, topk) * near / ranks * (near - 1) / near
            across = np.minimum(_distinct(domains, topk), limit) * (domains - 1) / domains
        within = token_gb * inside / inside_gb_s(hardware, constants, library) + near_s
        rate = across_gb_s(hardware, constants, library) / domains ** constants["dispatch_spread"]
        between = np.where(domains > 1, token_gb * across / rate + far_s, 0.0)
        total = np.where(chosen, np.maximum(within, between), total)
    return np.where(ranks > 1, total, 0.0)


def _distinct(places: Floats, picks: float) -> Floats:
    """Returns the expected number of distinct places hit by `picks` uniform draws."""
    return places * (1 - (1 - 1 / np.maximum(places, 1.0)) ** picks)


def _libraries(candidates: Candidates) -> dict[str, Flags]:
    """Returns {library: the rows that use it}."""
    flex = candidates.among("moe_token_dispatcher_type", "flex")
    chosen = {
        "alltoall": candidates.among("moe_token_dispatcher_type", "alltoall"),
        "allgather": candidates.among("moe_token_dispatcher_type", "allgather"),
    }
    backends = ("deepep", "hybridep", "ncclep")
    return chosen | {name: flex & candidates.among("moe_flex_dispatcher_backend", name) for name in backends}
