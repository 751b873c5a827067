"""Pytest plugin that writes the CPU seconds of each test to a folder, which `benchmarks.test_cost` adds up.

It imports nothing of this repository, so that other checkouts can be measured as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "CPU_BY_TEST_FOLDER"  # environment variable with the folder of the figures; nothing is recorded without it


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Records user + system time of this process and of its finished children, fixtures included."""
    before_s = _cpu_s()
    try:
        return (yield)
    finally:
        if folder := os.environ.get(FOLDER):
            with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps([item.nodeid, _cpu_s() - before_s]) + "\n")


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
