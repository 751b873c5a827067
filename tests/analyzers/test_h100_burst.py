"""A step that engine `megatron` recorded on an H100: torch 2.11, Transformer Engine 2.10, 8 layers of 16 experts,
one after the other, micro batch 16."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from analyzers import analyze
from analyzers.diagnosis import Wall
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import read

TRACE = Path(__file__).with_name("moe_h100_megatron.json.gz")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _busy_us() -> float:
    """Returns the time in which something runs on the device, added up by the ends of sorted intervals."""
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in events if each.get("cat") in ON_DEVICE)
    busy = reached = 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy


def test_the_host_is_the_wall_of_experts_that_run_one_after_the_other() -> None:
    found = analyze([TRACE])
    (trace,) = found.traces
    assert found.diagnosis.wall is Wall.HOST
    (step,) = trace.steps
    assert step.duration_us == pytest.approx(586e3, rel=0.01)
    assert step.idle_us / step.duration_us == pytest.approx(0.70, abs=0.01)
    assert trace.coverage.device_time_classified > 0.99


def test_what_runs_on_the_device_is_all_counted() -> None:
    (timeline,) = read(TRACE)
    assert break_down(timeline).span.busy_us == pytest.approx(_busy_us(), rel=1e-3)
