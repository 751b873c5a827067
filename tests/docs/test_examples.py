"""An example that a document shows gives what the document shows, within the bounds that it states."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.cli import main
from tests.places import ROOT, TRACES, WITHOUT_SHARED

SHARE = 0.05  # tolerance that docs/simulated.md states
FIGURES = 0.1  # tolerance of other examples
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WIDTH = "100"  # columns of the terminal in which the examples of first-night.md were printed
COST = re.compile(r"cost: (\d+) bursts, ([\d.]+) simulated GPU-hours")
BEST = re.compile(r"best: trial \d+ .*?([\d.]+)× trial 0")


def figures(text: str) -> tuple[int, float, float]:
    """Returns the bursts, GPU-hours and speed-up at the end of a run."""
    cost, best = COST.search(text), BEST.search(text)
    assert cost, text
    assert best, text
    return int(cost[1]), float(cost[2]), float(best[1])


@pytest.mark.thorough
def test_the_simulated_example_gives_what_its_document_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "simulated.md").read_text(encoding="utf-8")
    recipe, command = re.search(r"```yaml\n(.*?)```", text, re.DOTALL), re.search(r"`moe-autotune (run .*?)`", text)
    assert recipe
    assert command
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    Path("recipe.yaml").write_text(recipe[1])
    assert main(command[1].split()) == 0
    bursts, hours, speedup = figures(text)
    out = capsys.readouterr().out
    bursts_now, hours_now, speedup_now = figures(out)
    assert bursts_now == bursts
    assert hours_now == pytest.approx(hours, rel=SHARE)
    assert speedup_now == pytest.approx(speedup, rel=SHARE)
    shown = text.partition("ends with\n\n```\n")[2].partition("```")[0].splitlines()
    found = [line.partition(" ")[2] for line in out.splitlines()]  # without the time
    assert shown
    assert [line for line in shown if not any(cut_of(line, other) for other in found)] == []


def cut_of(shown: str, line: str) -> bool:
    """Returns whether a line, without a `...` at its end, is the start of another, figures within FIGURES."""
    words = shown.removesuffix(" ...").split()
    return unlike([" ".join(words)], [" ".join(line.split()[: len(words)])]) == []


def block(document: str, command: str) -> list[str]:
    """Returns the lines that a document shows below a command."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return text.partition(f"$ {command}\n")[2].partition("```")[0].splitlines()


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns what a command prints, messages first."""
    assert main(shlex.split(os.path.expandvars(command))[1:]) in (0, 1)  # 1: check finds that it does not fit
    out, err = capsys.readouterr()
    return [line.rstrip() for line in (err + out).splitlines()]


def unlike(shown: Sequence[str], found: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the lines that differ in words, or in figures by more than FIGURES; `...` matches any lines."""
    left, differ = list(found), list[tuple[str, str]]()
    for at, line in enumerate(shown):
        if line.strip() == "...":
            follows = NUMBER.sub("", shown[at + 1])
            while left and NUMBER.sub("", left[0]) != follows:
                left.pop(0)
            continue
        other = left.pop(0) if left else ""
        figures = [[float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (line, other)]
        if NUMBER.sub("", line).split() != NUMBER.sub("", other).split() or figures[0] != pytest.approx(
            figures[1], rel=FIGURES
        ):
            differ.append((line, other))
    return differ + [("", line) for line in left]


def test_lines_that_differ_from_what_is_shown_are_found() -> None:
    shown = ["a 100 GiB", "...", "end 5"]
    assert unlike(shown, ["a 101 GiB", "b", "c", "end 5"]) == []
    assert unlike(shown, ["a 120 GiB", "b", "end 5"]) == [("a 100 GiB", "a 120 GiB")]
    assert unlike(shown, ["a 100 MiB", "end 5", "more"]) == [("a 100 GiB", "a 100 MiB"), ("", "more")]


def test_the_import_that_a_document_shows_prints_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "tests" / "autotune" / "importing" / "launch")
    monkeypatch.setenv("COLUMNS", "84")
    text = (ROOT / "docs" / "launch-scripts.md").read_text(encoding="utf-8")
    command = re.search(r"\$ (moe-autotune import mixture_torchrun.*)", text)
    assert command
    found = printed(command[1], capsys)
    shown = block("launch-scripts.md", command[1])
    recipe = next(at for at, line in enumerate(found) if line.startswith("# Imported from"))
    assert unlike(shown, [*found[:recipe]]) == []


@pytest.mark.thorough
def test_the_first_night_prints_what_its_document_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, copy in (("launch_megatron_lm.sh", "train.sh"), ("pretrain_gpt_on_cpu.py", "pretrain_gpt_on_cpu.py")):
        shutil.copy(ROOT / "tests" / "trainers" / name, tmp_path / copy)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.setenv("MEGATRON_LM", "megatron-lm")
    for command in (
        "moe-autotune import train.sh -o base_recipe.yaml --gpu cpu --set MEGATRON_LM=$MEGATRON_LM",
        "moe-autotune check base_recipe.yaml",
        "moe-autotune run base_recipe.yaml --dry-run",
    ):
        assert unlike(block("first-night.md", command), printed(command, capsys)) == []
        recipe = Path("base_recipe.yaml")
        if "memory_gib" not in recipe.read_text():
            recipe.write_text(recipe.read_text().replace("cluster:\n", "cluster:\n  memory_gib: 0.42\n"))


@pytest.mark.thorough
@pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
def test_the_compared_traces_print_what_their_document_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(TRACES)
    monkeypatch.setenv("COLUMNS", "84")
    command = "moe-autotune compare resnet50_w0.json.gz resnet50_w4.json.gz"
    assert unlike(block("reading-traces.md", command), printed(command, capsys)) == []


@pytest.mark.thorough
@pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
def test_the_notebook_of_a_document_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reading-traces.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    assert "load_study" in code
    monkeypatch.chdir(tmp_path)
    Path("trace").mkdir()
    shutil.copy(TRACES / "resnet50_w0.json.gz", "trace")
    kept, study = ROOT / "tests" / "autotune" / "tuning" / "journals" / "before_probe", Path("studies/cpu-moe-slow-1")
    study.mkdir(parents=True)
    shutil.copy(kept / "recipe.yaml", study)
    (study / "journal.jsonl").write_bytes(gzip.decompress((kept / "journal.jsonl.gz").read_bytes()))
    exec(code, {})


@pytest.mark.thorough
def test_the_dry_run_prints_what_its_document_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "84")
    command = "moe-autotune estimate deepseek-v3-1024xh100 --dry-run --pp-rank 4"
    (shown, *table), (found, *rows) = block("estimates.md", command), printed(command, capsys)
    assert shown.rpartition(", ")[0] == found.rpartition(", ")[0]  # without its seconds
    end = table.index("...")
    assert unlike(table[:end], rows[:end]) == []
