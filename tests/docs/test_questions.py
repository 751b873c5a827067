"""Every command on the pages of `gap` and `bisect` runs, on stand-ins of the files that they name, and the examples
print what is shown."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from autotune.cli import main
from benchmarks.gap_cases import write_log
from tests.autotune.outside import SMALL
from tests.docs.test_examples import unlike
from tests.places import ROOT
from tests.rows import filled
from trainer.recipe import load_recipe

pytestmark = pytest.mark.thorough
WIDTH = "100"  # columns of the terminal in which the examples were printed
TIME = re.compile(r"\d\d:\d\d:\d\d ")
TOY = ROOT / "tests" / "autotune" / "bisect" / "toy_trainer.py"
LAUNCH = """\
#!/bin/bash
export NVTE_FLASH_ATTN={attention}
torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \\
  --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 4 --vocab-size 512 --train-iters 100 {more}
"""


def blocks(document: str) -> list[str]:
    """Returns the fenced blocks of a page."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(r"```(?:yaml)?\n(.*?)```", text, re.DOTALL)


def commands(document: str) -> Iterator[list[str]]:
    """Yields the words of each command in the blocks of a page."""
    for block in blocks(document):
        yield from (shlex.split(line)[1:] for line in block.splitlines() if line.startswith("moe-autotune "))


def block_from(document: str, start: str) -> list[str]:
    """Returns the lines of the block that starts with these words."""
    return next(block for block in blocks(document) if block.lstrip().startswith(start)).splitlines()


@pytest.fixture
def run_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the files that the page of `gap` names, except a probe: logs, traces, a study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    Path("recipe.yaml").write_text(SMALL)
    assert main(["run", "recipe.yaml", "--study", "night", "--budget", "1"]) == 0
    recipe = load_recipe("recipe.yaml")
    write_log(recipe, [9e5, 5e5, 4e5, 4.1e5, 3.9e5, 4e5], Path("train.log"))
    shutil.copytree("night/bursts/0001/trace", "trace")
    for name in ("dp16", "dp32"):
        shutil.copy("train.log", f"{name}.log")
    for name in ("today", "last_month"):
        shutil.copytree("trace", name)


def test_every_command_on_the_page_of_gap_runs(run_of_a_page: None, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["probe", "recipe.yaml", "--json"]) == 0
    Path("probe.json").write_text(capfd.readouterr().out)
    for words in filled(commands("gap.md")):
        if words[1].startswith("example/"):
            continue  # below, with what it prints
        assert main(words) == 0, words
        capfd.readouterr()


def test_the_example_of_gap_prints_what_its_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    made = [sys.executable, "-m", "benchmarks.gap", "--seed", "2", "--keep", str(tmp_path / "example")]
    subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
    assert main(next(words for words in commands("gap.md") if words[1].startswith("example/"))) == 0
    found = capsys.readouterr().out.splitlines()
    for start in ("waterfall", "1  less context parallelism"):
        shown = [line.partition("…")[0].rstrip() for line in block_from("gap.md", start) if line.strip() != "…"]
        assert [line for line in filled(shown) if not any(is_like(line, other) for other in found)] == []


def is_like(shown: str, line: str) -> bool:
    """Returns whether a line is as shown, or starts with it."""
    words = shown.split()
    return unlike([" ".join(words)], [" ".join(line.split()[: len(words)])]) == []


def test_every_command_on_the_page_of_bisect_runs(
    light_agent: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TOY, "pretrain_gpt.py")
    Path("activate").write_text("export NEW=1\n")
    Path("last_month.sh").write_text(LAUNCH.format(attention=1, more=""))
    Path("today.sh").write_text(LAUNCH.format(attention=0, more="--log-throughput"))
    shutil.copy("last_month.sh", "train.sh")
    for words in filled(commands("bisect.md")):
        more = [] if words[0] == "report" else ["--gpu", "cpu", "--budget", "2"]
        more += ["--dry-run"] if "cpu-moe" in words else []  # real ranks: tests/autotune/bisect
        asked = [word.replace("/venvs/new/bin/activate", str(tmp_path / "activate")) for word in words]
        assert main([*asked, *more]) == 0, words
        capsys.readouterr()


def test_the_example_of_bisect_prints_what_its_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    a, knobs = (yaml.safe_load(block) for block in blocks("bisect.md") if block.startswith(("name:", "knobs:")))
    Path("a.yaml").write_text(yaml.safe_dump(a))
    Path("b.yaml").write_text(yaml.safe_dump(a | knobs))
    assert main(["bisect", "a.yaml", "b.yaml", "--study", "example"]) == 0
    found = [TIME.sub("", line, count=1) for line in capsys.readouterr().out.splitlines()]
    shown = block_from("bisect.md", "B is slower by:")
    assert [line for line in shown if not any(is_like(line, other) for other in found)] == []
