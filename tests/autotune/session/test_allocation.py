"""Arguments that a study's own job gets from the command that submitted it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.console import Console

from autotune.commands.run import moment_of
from autotune.session.allocation import InAllocation
from autotune.session.session import Limits
from trainer.recipe import load_recipe


def words(folder: Path, limits: Limits) -> dict[str, str]:
    asked = InAllocation(
        recipe=load_recipe("cpu-moe"), given="r.yaml", folder=folder, limits=limits, console=Console(), notify="mail me"
    ).argv()
    return {name: asked[at + 1] for at, name in enumerate(asked) if name.startswith("--") and name != "--resume"}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("in_s", [60, 3 * 3600, 30 * 3600])
def test_a_deadline_is_the_same_moment_whenever_and_wherever_the_job_starts(
    in_s: int, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = float(int(time.time()) + in_s)
    passed = words(tmp_path, Limits(budget=20, max_gpu_hours=None, until=until))["--until"]
    monkeypatch.setenv("TZ", zone)  # the node's time zone
    time.tzset()
    try:
        assert moment_of(passed) == until
    finally:
        monkeypatch.undo()
        time.tzset()


def test_every_limit_and_the_price_are_handed_on(tmp_path: Path) -> None:
    passed = words(tmp_path, Limits(budget=7, max_gpu_hours=3.5, until=None, gpu_hour_price=2.25))
    expected = {"--budget": "7", "--max-gpu-hours": "3.5", "--gpu-hour-price": "2.25", "--notify": "mail me"}
    assert passed == {**expected, "--study": str(tmp_path)}
