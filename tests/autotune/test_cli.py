"""The program from outside: exit codes, messages that say what to do, JSON alone on stdout, a fast --help."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import app, main
from autotune.looks.reasons import end_text
from autotune.tuning.journal import JOURNAL, read_study
from tests.autotune.outside import SIMULATED, SMALL
from tests.places import ROOT
from tests.rows import filled

HEAVY = ("torch", "megatron", "optuna", "pandas", "numpy", "pydantic", "trainer.recipe", "policies", "rich.live")


pytestmark = pytest.mark.usefixtures("empty_folder")


def test_help_imports_nothing_heavy() -> None:
    """Checks the set of imported modules, since the time depends on the machine: 0.15 s where it was measured."""
    program = "import sys; from autotune.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    for words in (["--help"], ["run", "--help"]):
        run = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        loaded = set(run.stderr.split())
        assert not loaded.intersection(HEAVY)
        assert "Usage: moe-autotune" in run.stdout


def test_every_command_of_the_contract_is_there_with_json_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [
        "run",
        "status",
        "watch",
        "studies",
        "check",
        "estimate",
        "plan",
        "diagnose",
        "compare",
        "report",
        "export",
        "doctor",
        "init",
    ]
    for command in commands:
        assert main([command, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"Usage: moe-autotune {command}")
        assert "--json" in said


def test_help_shows_no_default_that_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [name for name in app() if not name.startswith("-")]
    for command in filled(commands):
        assert main([command, "--help"]) == 0
        said = capsys.readouterr().out
        assert not [word for word in ("[default: False]", "[default: True]", "[default: None]") if word in said]
    assert main(["run", "--help"]) == 0
    assert "[default: 20]" in capsys.readouterr().out


def test_h_is_help_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["run"], ["check"], ["import"], ["completion"]):
        assert main([*words, "-h"]) == 0
        short = capsys.readouterr().out
        assert main([*words, "--help"]) == 0
        assert short == capsys.readouterr().out
        assert short.startswith("Usage: moe-autotune")


BAD_RECIPES = {
    "not YAML": ("name: [", "YAML"),
    "binary": ("\x00\x01\x02\xff", "→"),
    "empty": ("", "empty"),
    "unknown key": (SIMULATED + "paralelism: {}\n", "parallelism"),
    "unknown knob": (SIMULATED.replace("recompute_method", "recompute_methud"), "recompute_method"),
    "wrong type": (SIMULATED.replace("seq_length: 2048", "seq_length: long"), "seq_length"),
    "negative": (SIMULATED.replace("seq_length: 2048", "seq_length: -2048"), "seq_length"),
    "no such model": (SIMULATED.replace("qwen3-30b-a3b", "qwen3-30b-a3c"), "qwen3-30b-a3b"),
    "no such GPU": (SIMULATED.replace("h100", "h1000"), "h100"),
    "no such engine": (SIMULATED.replace("simulated", "simulator"), "simulated"),
    "impossible layout": (SIMULATED.replace("{ep: 8}", "{tp: 3, ep: 8}"), "tensor_model_parallel_size"),
}


@pytest.mark.parametrize("case", BAD_RECIPES)
def test_a_bad_recipe_ends_with_2_and_says_what_to_do(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, named = BAD_RECIPES[case]
    (tmp_path / "bad.yaml").write_text(text, encoding="latin-1")
    assert main(["run", "bad.yaml"]) == 2
    said = capsys.readouterr().err
    assert "bad.yaml" in said
    assert named in said
    assert "→ " in said
    assert not (tmp_path / "studies").exists()


def test_all_problems_of_a_recipe_are_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = SIMULATED.replace("2048", "-1").replace("h100", "h1000") + "nme: x\n"
    (tmp_path / "bad.yaml").write_text(bad)
    assert main(["run", "bad.yaml"]) == 2
    assert capsys.readouterr().err.count("→") >= 3


def kineto(events: list[dict[str, Any]]) -> bytes:
    return json.dumps({"traceEvents": events}).encode()


BAD_TRACES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "binary": lambda: bytes(range(256)),
    "truncated": lambda: b'{"traceEvents": [{"ph": "X", "cat": "kernel", "na',
    "truncated gzip": lambda: gzip.compress(kineto([{"ph": "X"}] * 1000))[:60],
    "no events": lambda: kineto([]),
    "no device events": lambda: kineto([{"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 2}]),
}


@pytest.mark.parametrize("case", BAD_TRACES)
def test_a_bad_trace_ends_with_2_and_says_what_to_do(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("bad.json.gz" if "gzip" in case else "bad.json")
    path.write_bytes(BAD_TRACES[case]())
    assert main(["diagnose", str(path)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert "→ " in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["run"], "moe-autotune run: RECIPE is missing"),
        (["run", "cpu-moe", "--study"], "--study requires an argument"),
        (["rnu", "x"], 'Did you mean "run"?'),
        (["run", "cpu-moe", "--bugdet", "3"], "Did you mean --budget?"),
        (["run", "cpu-moe", "--budget", "0"], "Must be > 0"),
        (["run", "cpu-moe", "--budget", "many"], "many"),
        (["run", "cpu-moe", "--resume"], "no study of this recipe to resume"),
        (["run", "cpu-moe", "--resume", "--study", "nowhere"], "not a study"),
        (["run", "cpu-mo"], "cpu-moe"),
        (["estimate", "cpu-moe", "--software", "24.01"], "26.06"),
        (["diagnose"], "no trace is named"),
        (["diagnose", "nowhere.json"], "nowhere.json"),
        (["compare", "a.json", "b.json"], "a.json"),
        (["report", "nowhere"], "not a study"),
        (["export", "cpu-moe", "--to", "toml"], "yaml"),
        (["init", "--model", "mixtral-8x7"], "mixtral-8x7b"),
        (["init", "--gpus", "13"], "8 or 16"),
        (["init", "--output", "nowhere/recipe.yaml"], "nowhere/recipe.yaml"),
    ],
)
def test_bad_usage_ends_with_2_and_names_the_way_out(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "→ " in captured.err
    assert captured.out == ""


def document_of(text: str) -> Any:
    """Returns the one JSON document of a text; fails on anything before or after it."""
    return json.loads(text)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "base.yaml", "--budget", "1"], 0),
        (["export", "base.yaml", "--to", "yaml"], 0),
        (["run", "nowhere.yaml"], 2),
        (["rnu"], 2),
    ],
)
def test_with_json_stdout_is_one_document(
    words: list[str], code: int, recipe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`tests/autotune/schemas` checks the documents of the other commands the same way, and validates them."""
    assert main([*words, "--json"]) == code
    captured = capfd.readouterr()
    document = document_of(captured.out)
    assert document["schema"] == 1
    assert ("error" in document) is (code == 2)


def test_an_error_document_carries_every_problem(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "nowhere.json", "--json"]) == 2
    captured = capfd.readouterr()
    document = document_of(captured.out)
    (problem,) = document["error"]["problems"]
    assert problem["where"] == "nowhere.json"
    assert problem["hint"]
    assert "nowhere.json" in captured.err


@pytest.fixture
def study(ended: Path, empty_folder: Path) -> Path:
    """Returns a copy of the study that a test may change."""
    shutil.copytree(ended / "studies/sim-1", empty_folder / "s")
    return Path("s")


def test_a_run_ends_with_a_report_and_says_where(ended: Path) -> None:
    study, said = ended / "studies/sim-1", (ended / "said.txt").read_text()
    assert "report: studies/sim-1/report.html" in said
    assert re.search(r"\d\d:\d\d:\d\d \[fit\] trial 0: base\n\d\d:\d\d:\d\d   why: the base recipe", said)
    assert (study / "recipe.yaml").read_text() == SMALL
    assert {path.name for path in study.iterdir()} >= {JOURNAL, "report.json", "report.md", "tuned_recipe.yaml"}
    assert (study / "bursts" / "0001" / "outcome.json").exists()


def test_a_second_run_makes_a_second_study_and_an_existing_one_is_refused(
    ended: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ended / "studies", "studies")
    assert main(["run", str(recipe), "--budget", "1"]) == 0
    assert {path.name for path in Path("studies").iterdir()} == {"sim-1", "sim-2"}
    assert main(["run", str(recipe), "--study", "studies/sim-1"]) == 2
    assert "add --resume" in capsys.readouterr().err


def test_a_dry_run_makes_no_folder_and_says_what_would_be_tried(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(recipe), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "estimated peak" in said
    assert "moe_token_dispatcher_type" in said
    for text in ("tokens/s/GPU", "gain (90 %)", "from the tables only", "20 bursts need about", "for starting ranks"):
        assert text in said
    assert list(tmp_path.iterdir()) == [recipe]


@pytest.mark.parametrize("moment", ["7", "25:00", "soon", "2026-02-30T07:00", "T"])
def test_an_invalid_time_is_refused(moment: str, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(recipe), "--until", moment]) == 2
    assert "HH:MM" in capsys.readouterr().err
    assert not Path("studies").exists()


def test_gpu_hours_end_a_study(recipe: Path) -> None:
    recipe.write_text(SIMULATED)
    assert main(["run", str(recipe), "--max-gpu-hours", "0.01", "--study", "s"]) == 0
    ended = read_study(Path("s")).ended
    assert ended is not None
    assert "0.01 GPU-hours are used" in end_text(ended)


def test_a_recipe_nothing_can_make_fit_ends_with_1(infeasible: Path) -> None:
    assert main(["check", str(infeasible / "base.yaml")]) == 1
    assert json.loads((infeasible / "studies/sim-1/report.json").read_text())["status"] == "infeasible"


def test_the_report_command_writes_what_was_deleted(study: Path) -> None:
    names = ("report.html", "report.md", "tuned_recipe.yaml", "report.json")
    before = (study / "report.json").read_bytes()
    for name in names:
        (study / name).unlink()
    assert main(["report", str(study)]) == 0
    assert (study / "report.json").read_bytes() == before
    assert all((study / name).exists() for name in names)


@pytest.mark.usefixtures("study")
def test_two_bursts_can_be_diagnosed_and_compared(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "s/bursts/0001", "--json"]) == 0
    assert document_of(capfd.readouterr().out)["diagnosis"]["wall"]
    assert main(["compare", "s/bursts/0001", "s/bursts/0001", "--json"]) == 0
    document = document_of(capfd.readouterr().out)
    assert document["a"] == document["b"]


def test_the_starter_recipe_breaks_no_rule_and_is_not_overwritten(capfd: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--model", "mixtral-8x7b", "--gpu", "b200", "--gpus", "16"], ["--gpu", "cpu", "--gpus", "2"]):
        Path("starter.yaml").unlink(missing_ok=True)
        assert main(["init", *words, "--output", "starter.yaml"]) == 0
        capfd.readouterr()
        main(["check", "starter.yaml", "--json"])
        assert document_of(capfd.readouterr().out)["legal"]
        assert main(["init", *words, "--output", "starter.yaml"]) == 2


def test_a_recipe_that_breaks_a_rule_gets_the_nearest_that_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(SIMULATED.replace("{ep: 8}", "{tp: 2, ep: 8}"))
    assert main(["check", "bad.yaml", "--json"]) == 1
    document = document_of(capfd.readouterr().out)
    assert not document["legal"]
    assert document["nearest"]["changes"]
    (tmp_path / "nearest.yaml").write_text(document["nearest"]["yaml"])
    main(["check", "nearest.yaml", "--json"])
    assert document_of(capfd.readouterr().out)["legal"]


@pytest.mark.usefixtures("recipe")
def test_a_path_that_looks_like_an_option_is_said_to_need_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("base.yaml", "-r.yaml")
    assert main(["check", "-r.yaml"]) == 2
    said = capsys.readouterr().err
    assert "→ see `moe-autotune check --help`; a path that starts with - is written ./-r.yaml" in said
    assert main(["check", "./-r.yaml"]) == 0
