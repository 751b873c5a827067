"""One unit everywhere: what is counted for a GPU is counted for a rank where the recipe runs on CPUs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from autotune.cli import main
from autotune.tuning.journal import read_study
from autotune.tuning.live import PlainView, summary
from tests.autotune.tuning.fakes import FASTER, SLOWER, loop_in, micro_batches

COMMANDS = (
    ["run", "cpu-moe", "--dry-run"],
    ["init", "--model", "qwen3-30b-a3b", "--gpu", "cpu", "--gpus", "2"],
    ["plan", "cpu-moe", "--top", "2", "-o", "first.yaml", "--html", "plan.html"],
    ["estimate", "cpu-moe", "--html", "estimate.html"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_of_a_recipe_on_cpus_is_counted_for_a_gpu(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0
    said = capsys.readouterr().out + "".join(path.read_text() for path in tmp_path.iterdir())
    assert "tokens/s/rank" in said or "ranks" in said
    for words in ("/GPU", "per GPU", "GPU-hours"):
        assert words not in said


def test_the_log_the_table_and_the_report_of_a_study_on_cpus_have_one_unit(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, width=110, color_system=None)
    ideas, folder = [SLOWER, FASTER], tmp_path / "study"
    loop_in(folder, rule=micro_batches, ideas=ideas, listener=PlainView(console=console).show).run()
    summary(read_study(folder), console)
    assert main(["report", str(folder)]) == 0
    said = out.getvalue() + (folder / "report.md").read_text() + (folder / "report.html").read_text()
    assert "tokens/s/rank, peak" in said
    assert "tokens/s/GPU" not in said
    assert "GPU-hour" not in said
