"""The options that name a stretch of a trace, from the command line to the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzers.diagnosis import Stretch
from autotune.cli import main
from autotune.diagnose.stretch import stretch_of
from tests.analyzers.drawing import GEMM, Drawing
from trainer.errors import BadInputError


@pytest.mark.parametrize(("text", "us"), [("1.5", 1.5e6), ("2s", 2e6), ("350ms", 350e3), ("40us", 40.0)])
def test_times_have_units_and_are_seconds_without_one(text: str, us: float) -> None:
    assert stretch_of(range_name=None, step_marker=None, since=text, until=None) == Stretch(from_us=us)


@pytest.mark.parametrize(("since", "until"), [("x", None), (None, "-1"), ("2", "1s"), (None, "1m")])
def test_what_is_no_time_is_refused(since: str | None, until: str | None) -> None:
    with pytest.raises(BadInputError):
        stretch_of(range_name=None, step_marker=None, since=since, until=until)


def test_the_command_judges_the_stretch_that_it_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    drawing = Drawing(world_size=1).range("init", 0, 5000).kernel(GEMM, 0, 4000, launched=0).range("loop", 5000, 7000)
    path = str(drawing.kernel(GEMM, 5100, 5300, launched=5050).write(tmp_path))
    assert main(["diagnose", path, "--range", "loop", "--html", str(tmp_path / "d.html"), "--json"]) == 0
    (trace,) = json.loads(capfd.readouterr().out)["traces"]
    assert trace["stretch"]["range"] == "loop"
    assert [step["duration_us"] for step in trace["steps"]] == [2000]
    assert "lanes-data" in (tmp_path / "d.html").read_text()
    assert main(["diagnose", path, "--from", "5ms"]) == 0
    assert "no step markers: the trace from 5.00 ms as one" in " ".join(capfd.readouterr().out.split())
    assert main(["diagnose", path, "--range", "loops"]) == 2
    assert "has no range 'loops'" in capfd.readouterr().err
