"""The parts by which a step's time is shown, in drawing order, with their display names."""

from __future__ import annotations

# the parts of TimeTable.by_part that add up to the step; the others include hidden communication
STEP_PARTS = {
    "compute_s": "compute",
    "head_s": "output head and loss",
    "recompute_s": "recompute",
    "ep_exposed_s": "EP exposed",
    "tp_exposed_s": "TP exposed",
    "cp_exposed_s": "CP exposed",
    "offload_exposed_s": "offload exposed",
    "pp_exposed_s": "PP sends exposed",
    "dp_exposed_s": "DP exposed",
    "pp_bubble_s": "pipeline bubble",
    "host_s": "host",
    "gc_s": "garbage collection",
    "sync_s": "waiting for other ranks",
    "optimizer_s": "optimizer",
}
