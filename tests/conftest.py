"""How the suite is run: what keeps to itself while files run side by side, and one line on what was not run.

A file stays on one worker, so that what its tests share is made once. Files marked `xdist_group("ranks")` start ranks
or end processes by their marks: two of them would be in each other's way. Those marked `xdist_group("megatron")` use
Megatron-Core in the process of the tests, which one worker imports then.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

LONG = ("ranks", "megatron")
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups before xdist asks for them, and the longest first: the rest fills the other worker."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = next(item.iter_markers("xdist_group")).args[0]
    return LONG.index(group) if group in LONG else len(LONG)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT][_kind(item)] += 1


def _kind(item: pytest.Item) -> str:
    """The word of `-m` that left the test out: "not (faults or browser)" leaves out what is marked faults."""
    marks = {mark.name for mark in item.iter_markers()}
    words = re.findall(r"\w+", item.config.getoption("markexpr"))
    return next((word for word in words if word in marks), "of `make test`")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker of pytest-xdist leaves out the same tests."""
    left_out: Counter[str] = node.config.stash[LEFT_OUT]
    left_out |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """The last line of a run."""
    config, left_out = session.config, session.config.stash[LEFT_OUT]
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(left_out)
    yield
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (line := _line(left_out=left_out, skipped=_skips(reporter))):
        reporter.write_line(line)


def _skips(reporter: Any) -> Counter[str]:
    reports = reporter.stats.get("skipped", [])
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)


def _line(**counts: Counter[str]) -> str:
    def whys(of: Counter[str]) -> str:
        return ", ".join(f"{count:,} {why}" for why, count in sorted(of.items()))

    return "; ".join(f"{what.replace('_', ' ')}: {whys(of)}" for what, of in counts.items() if of)
