"""Measured figures of the links between nodes."""

from __future__ import annotations

import msgspec


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """Links between nodes, by all-reduces of each rank with its peers on the other nodes, all ranks of a node at once.

    `bandwidth_gb_s` is what a rank sends per second (2·(n−1)/n of its data, at the fastest size), `latency_us` the time
    of a 4 KiB all-reduce. `clocks_apart_s`: largest clock difference between two nodes, to within the latency.
    `folder_lag_s`: time until every rank saw what rank 0 wrote, or what all ranks wrote if that took longer.
    """

    nodes: int
    ranks_per_node: int
    backend: str
    hosts: list[str]
    interfaces: list[str]
    bandwidth_gb_s: float
    message_mib: float
    latency_us: float
    clocks_apart_s: float
    folder_lag_s: float
