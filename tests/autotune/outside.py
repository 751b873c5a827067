"""The program as a user starts it, and the simulated cluster it is tried on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT

SIMULATED = """\
name: sim
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2, gpus_per_node: 8}
training: {seq_length: 2048, global_batch_size: 64}
parallelism: {ep: 8}
knobs:
  {use_distributed_optimizer: true, recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}
burst: {engine: simulated, warmup_steps: 1, measure_steps: 5, trace_steps: 1}
"""
# the same with a sixth of the layers, for studies that tests wait for: traces and search cost a quarter
SMALL = SIMULATED.replace(
    "qwen3-30b-a3b",
    "{num_layers: 8, hidden_size: 2048, num_attention_heads: 32, num_query_groups: 4, kv_channels: 128, "
    "vocab_size: 151936, ffn_hidden_size: 6144, num_moe_experts: 128, moe_router_topk: 8, moe_ffn_hidden_size: 768}",
)
SEED = "5"  # of studies that are compared
LONG = SMALL + "tune: {patience: 1000}\n"  # runs many bursts, for studies that are ended from outside


def started(*words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **options},
    )


def without_a_reader(*words: str) -> tuple[int, str]:
    """Returns exit code and stderr of a command whose stdout is a pipe that nobody reads."""
    done = _with_closed_pipe(words, "stdout")
    return done.returncode, done.stderr


def without_a_reader_of_stderr(*words: str) -> tuple[int, str]:
    """Returns exit code and stdout of a command whose stderr is a pipe that nobody reads."""
    done = _with_closed_pipe(words, "stderr")
    return done.returncode, done.stdout


def _with_closed_pipe(words: tuple[str, ...], stream: str) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
    command, env = [sys.executable, "-m", "autotune.cli", *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, stdout=streams["stdout"], stderr=streams["stderr"], text=True, env=env)
    os.close(writer)
    return done


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a separate disk of this size (`256k`) while it is used; skips the test where mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)
