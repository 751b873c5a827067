"""Runs the suite: which files stay on one worker, and one line on what was not run.

A file stays on one worker, so that what its tests share is made once; so do the files of a row of `TOGETHER`.
pytest-xdist's own `xdist_group` does nothing under pytest 9.2 (pytest-dev/pytest-xdist#1386).
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import settings

from tests.places import LIGHT

# The workers share the cores, and threads that wait for each other spin. Set before anything imports NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is imported and collected stays until the end: searching it for garbage is a fifth of the collection's time.
gc.disable()
# The only limit in seconds of the suite: it guards against hanging. Nothing that works takes a tenth of it on a machine
# five times slower than usual while ten busy processes run.
HANG_S = 600.0
settings.register_profile("without deadline", deadline=None)  # hypothesis would fail a draw that takes 0.2 s
settings.load_profile("without deadline")
# What runs longest comes first: the rest fills the other workers.
TOGETHER = {
    # a real Slurm each, in which they mostly wait
    "ends": ("test_ended_by_slurm",),
    "starts": ("test_on_slurm", "test_probe_on_slurm"),
    "studies": ("test_study_job", "test_engines_on_slurm", "test_adoption"),
    # they start ranks of this machine, and end processes by their marks: two at once would be in each other's way
    "ranks": (
        "test_megatron_engine",
        "test_local_faults",
        "test_local_ranks",
        "test_processes",
        "test_tuner_killed",
        "test_real_walls",
    ),
    # Megatron-Core in the process of the tests: one worker imports it
    "megatron": (
        "test_dry_run",
        "test_megatron_configs",
        "test_megatron_cpu",
        "test_parameters_of_megatron",
        "test_rules_against_megatron",
    ),
}
TURNS = [*TOGETHER, ""]
# With this variable a run fails if it skipped a test for any other reason than these: what a machine cannot be given
# by `.ci/run`. GPUs, the facts beside the checkout, a checkout of Megatron-LM, Megatron-Bridge, and tests that are for
# machines without something that this one has.
COMPLETE = "MOE_AUTOTUNE_COMPLETE"
MAY_BE_MISSING = re.compile(
    r"needs a GPU|needs \d GPUs|\.\./shared|MEGATRON_LM|Megatron-Bridge is not installed|is installed$|has GPUs$"
    r"|without memory cgroups|without MLflow's server|not a git checkout|has every knob of the table"
    r"|no Python 3\.12 or 3\.13|with a Python that others may run too|needs two cores|needs Megatron-Core 0\.\d+"
)
LEFT_OUT = pytest.StashKey[Counter[str]]()
LEFT_OUT_OF = pytest.StashKey[set[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    config.stash[LEFT_OUT_OF] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: TURNS.index(_row(item.path.stem)))


def _row(file: str) -> str:
    return next((row for row, files in TOGETHER.items() if file in files), "")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000)  # by default Python searches for garbage every 700 objects
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _row(PurePath(file).stem) or file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture
def light_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts of this test have an agent that imports no torch; their ranks can."""
    monkeypatch.setenv("PYTHONPATH", str(LIGHT), prepend=os.pathsep)


@pytest.fixture
def left_out_of(request: pytest.FixtureRequest) -> set[Path]:
    """Returns the files with tests that this run leaves to `make test-full`."""
    return request.config.stash[LEFT_OUT_OF]


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts what `-m "not (faults or browser)"` leaves to `make test-full` by the word that says so, and its files."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        words = re.findall(r"\w+", item.config.getoption("markexpr"))
        if found := [word for word in words if word in marks][:1]:
            item.config.stash[LEFT_OUT].update(found)
            item.config.stash[LEFT_OUT_OF].add(item.path)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over a worker's count of what is left out; every worker of pytest-xdist leaves out the same."""
    left_out: Counter[str] = node.config.stash[LEFT_OUT]
    left_out |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Prints as the last line of a run how many tests were left to `make test-full` or skipped, and why; a worker hands
    its counts to the main process."""
    config, left_out = session.config, session.config.stash[LEFT_OUT]
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(left_out)
    yield
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker
        return
    skips = _skips(reporter)
    if lines := [*_summary("left to make test-full", left_out), *_summary("skipped", skips)]:
        reporter.write_line("; ".join(lines))
    wrong = Counter({why: count for why, count in skips.items() if not MAY_BE_MISSING.search(why)})
    if os.environ.get(COMPLETE) and wrong:
        reporter.write_line(f"failed: {COMPLETE} is set, and a test may not be skipped for: {', '.join(wrong)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips(reporter: Any) -> Counter[str]:
    reports = reporter.stats.get("skipped", [])
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)


def _summary(what: str, whys: Counter[str]) -> list[str]:
    return [f"{what}: " + ", ".join(f"{count:,} {why}" for why, count in sorted(whys.items()))] if whys else []
