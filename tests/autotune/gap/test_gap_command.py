"""`gap` from outside: a log, traces, a study, a recipe; what it compares with, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autotune.cli import main
from autotune.gap import comparing
from autotune.probe.document import MovedFactor, document_of
from benchmarks.gap_cases import write_log
from policies.surrogate.factors import factors
from tests.rows import filled
from trainer.recipe import load_recipe

ITERATION = " iteration {n}/ 6 | consumed samples: 8 | elapsed time per iteration (ms): {ms} | lm loss: 6.4E+00 |"
UNMARKED = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 1.0,
    "dur": 50.0,
    "args": {"stream": 7},
}
SCRIPT = "#!/bin/bash\necho no training\n"


@pytest.fixture(scope="module")
def there(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a study, the traces of its first burst moved out of it, and the log of another run."""
    folder = tmp_path_factory.mktemp("gap")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.copy(ended / "base.yaml", ".")
        shutil.copytree(ended / "studies/sim-1", "night")
        Path("night/bursts/0001/trace").rename("trace")
        write_log(load_recipe("base.yaml"), [9e5, 5e5, 4e5, 4.1e5, 3.9e5, 4e5], Path("run.log"))
    return folder


@pytest.fixture(autouse=True)
def _inside(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enters the folder, and replaces the search for layouts, which most of these tests do not need."""
    monkeypatch.chdir(there)
    monkeypatch.setattr(comparing, "first_choice", lambda own: own.replace({"recompute_granularity": None}))


def asked(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["gap", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    drops, levels = document["gaps"], {level["name"]: level["time"]["ms"] for level in document["levels"]}
    last = levels.get("reference", levels.get("plan", levels.get("compute")))
    first = document["levels"][0]["time"]["ms"]
    assert first - sum(drop["time"]["ms"] for drop in drops) == pytest.approx(last, rel=1e-6)
    return document


def test_a_log_is_its_median_without_warm_up_and_its_own_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    found = asked(capfd, "run.log", "--gpu", "h100")
    assert found["levels"][0]["time"]["ms"] == pytest.approx(400.0)
    assert (found["source"], found["split"], found["iterations"]) == ("log", "estimate", 4)
    assert "cpu_affinity" in found["unsaid"]
    assert found["published"]["differs"]["model"][0] == "8 layers of 2048"
    recompute = next(cause for cause in found["causes"] if "recompute_granularity" in cause["changes"])
    assert "--recompute-method uniform" in recompute["advice"]["remove"]
    assert recompute["advice"]["gain"] > 0


def test_with_a_trace_the_gap_is_divided_by_its_parts(capfd: pytest.CaptureFixture[str]) -> None:
    found = asked(capfd, "run.log", "--gpu", "h100", "--trace", "trace", "--software", "26.06")
    assert found["split"] == "parts"
    assert found["simulated"]
    parts = [drop for drop in found["gaps"] if drop["kind"] == "part"]
    assert all(drop["seen_ms"] is not None and drop["expected_ms"] is not None for drop in filled(parts))
    assert any("moe-autotune diagnose trace" in cause["advice"]["commands"] for cause in found["causes"])


def test_a_trial_is_compared_with_another_run_of_yours(capfd: pytest.CaptureFixture[str]) -> None:
    found = asked(capfd, "night/0", "--against", "night/0")
    assert (found["source"], found["against"], found["published"]) == ("study", "night/0", None)
    assert found["both_traced"]
    step_ms = found["levels"][0]["time"]["ms"]
    assert all(abs(drop["time"]["ms"]) < 1e-2 * step_ms for drop in filled(found["gaps"]))  # it is that trial
    against = asked(capfd, "run.log", "--gpu", "h100", "--against", "night", "--trace", "trace")
    assert {drop["kind"] for drop in against["gaps"]} >= {"part", "unexplained"}


def test_a_trace_without_a_recipe_is_divided_down_to_its_compute(capfd: pytest.CaptureFixture[str]) -> None:
    found = asked(capfd, "trace")
    assert found["split"] == "parts without a recipe"
    assert [level["name"] for level in found["levels"]] == ["measured", "compute"]
    other = asked(capfd, "trace", "--against", "trace")
    assert sum(abs(drop["time"]["ms"]) for drop in other["gaps"]) < 1e-6
    known = asked(capfd, "trace", "--recipe", "base.yaml")
    assert known["split"] == "parts"


def test_a_recipe_is_estimated_and_written_with_the_settings_that_gain(capfd: pytest.CaptureFixture[str]) -> None:
    found = asked(capfd, "base.yaml", "-o", "attainable.yaml", "--html", "gap.html")
    assert found["split"] == "nothing measured"
    assert found["attainable"] == "attainable.yaml"
    assert load_recipe("attainable.yaml").knob("recompute_granularity") is None
    page = Path("gap.html").read_text()
    assert "estimate of your recipe" in page
    assert "<svg" in page


def test_a_probe_says_what_slow_links_cost_where_nothing_was_traced(capfd: pytest.CaptureFixture[str]) -> None:
    own, factor = load_recipe("base.yaml"), next(each for each in factors() if each.name == "network")
    slow = MovedFactor(factor=factor.name, words=factor.words, unit="GB/s", by_tables=45, value=15, low=13, high=17)
    host = MovedFactor(factor="host", words="", unit="us", by_tables=2000, value=2100, low=1900, high=2300)
    document = document_of(own, [], ranks=16, seconds=60.0)
    Path("probe.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(document, factors=[slow, host])))
    found = asked(capfd, "run.log", "--gpu", "h100", "--probe", "probe.json")
    (links,) = [drop for drop in found["gaps"] if drop["kind"] == "probed"]  # the host's interval holds the tables'
    assert links["name"] == "probed_links"
    assert links["time"]["ms"] > 0


def test_a_step_that_is_no_longer_than_its_goal_is_not_said_to_lose_time(capfd: pytest.CaptureFixture[str]) -> None:
    write_log(load_recipe("base.yaml"), [2e3] * 6, Path("fast.log"))
    assert main(["gap", "fast.log", "--gpu", "h100"]) == 0
    first, *notes = " ".join(capfd.readouterr().out.split()).split(" note: ")
    assert first.endswith("of plan's first choice, by estimate: no longer")
    assert any("assumed to be the defaults" in note for note in notes)


def test_a_recipe_on_cpus_is_compared_with_no_published_run(capfd: pytest.CaptureFixture[str]) -> None:
    Path("cpu.log").write_text("\n".join(ITERATION.format(n=n, ms=100) for n in range(1, 7)))
    found = asked(capfd, "cpu.log", "--recipe", "cpu-moe-slow")
    assert found["published"] is None
    assert [level["name"] for level in found["levels"]] == ["measured", "plan"]
    assert all(cause["advice"]["gain"] > 0 for cause in filled(found["causes"]))
    assert main(["gap", "cpu.log", "--recipe", "cpu-moe-slow"]) == 0
    assert "nothing is published for CPUs" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("bare.log", "name the recipe with --recipe"),
        ("empty.log", "neither an iteration nor a dump"),
        ("script.sh", "no training command was reached"),
        ("base.yaml --against P9999", "no published run 'P9999'"),
        ("cpu-moe --against P0313", "nothing is published for CPUs"),
        ("base.yaml --against cpu-moe", "it was not measured"),
        ("base.yaml --against-trace trace", "--against names no other run"),
        ("base.yaml -o base.yaml", "this command reads it"),
        ("base.yaml --probe base.yaml", "no step was measured"),
        ("run.log --gpu h100 --probe base.yaml", "it is not a probe"),
        ("nowhere.log", "no such file"),
        ("cpu.log --recipe cpu-moe-slow --trace trace", "parts of CPU ranks are not compared"),
        ("unmarked.json --recipe base.yaml", "it marks no steps"),
    ],
)
def test_bad_input_says_what_is_missing(capfd: pytest.CaptureFixture[str], words: str, says: str) -> None:
    Path("bare.log").write_text(ITERATION.format(n=1, ms=100))
    Path("empty.log").write_text("nothing\n")
    Path("script.sh").write_text(SCRIPT)
    Path("cpu.log").write_text(ITERATION.format(n=1, ms=100))
    Path("unmarked.json").write_text(json.dumps({"traceEvents": [UNMARKED]}))
    assert main(["gap", *words.split()]) == 2
    assert says in capfd.readouterr().err.replace("\n", " ")


NAN = " iteration {n}/ 6 | consumed samples: 8 | elapsed time per iteration (ms): 900.0 | number of nan iterations: 1 |"


def test_a_run_that_ended_in_nan_is_said_to_have_and_compared_by_what_came_before(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = Path("run.log").read_text()
    said = {
        "line.log": NAN.format(n=7),
        "error.log": "ERROR:megatron:Unexpected result nan on rank 0 at iteration #7",
    }
    for name, line in said.items():
        Path(name).write_text(f"{before}\n{line}\n{NAN.format(n=8) if name == 'line.log' else ''}\n")
        found = asked(capfd, name, "--gpu", "h100")
        assert found["ended"]["kind"] == "nan"
        assert found["levels"][0]["time"]["ms"] == pytest.approx(400.0)
    assert main(["gap", "error.log", "--gpu", "h100"]) == 0
    assert "the run ended in NaN" in capfd.readouterr().out
    Path("none.log").write_text(before.split(" iteration ")[0] + NAN.format(n=1))
    assert main(["gap", "none.log", "--gpu", "h100"]) == 2
    assert "no step of it is a number" in capfd.readouterr().err


OOM = "[rank0]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"


def test_a_run_without_memory_for_its_first_step_is_said_to_be_and_what_fits_is_a_command_away(
    capfd: pytest.CaptureFixture[str],
) -> None:
    dumped = Path("run.log").read_text().split(" iteration ")[0]
    for name, text, imports in (("dumped.log", f"{dumped}\n{OOM}", True), ("rank0.err", OOM, False)):
        Path(name).write_text(text)
        assert main(["gap", name, "--gpu", "h100"]) == 2
        said = " ".join(capfd.readouterr().err.split())
        assert f"{name}: the run ran out of memory before its first step: [rank0]: RuntimeError" in said
        assert "`moe-autotune plan recipe.yaml` shows what fits" in said
        assert (f"moe-autotune import {name} --gpu h100 -o recipe.yaml" in said) is imports
    Path("script.sh").write_text(f"# avoids OutOfMemoryError\n{SCRIPT}")
    assert main(["gap", "script.sh"]) in (0, 2)
    assert "out of memory" not in capfd.readouterr().err


def test_the_waterfall_of_a_trace_fits_a_terminal_of_80_columns(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["gap", "run.log", "--gpu", "h100", "--trace", "trace", "--software", "26.06"]) == 0
    table = capfd.readouterr().out.partition(" waterfall ")[2].partition("\n\n")[0].splitlines()[1:]
    assert max(map(len, table)) <= 80
    assert all(any(digit in line for digit in "0123456789") for line in filled(table))
