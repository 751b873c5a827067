"""Terminals of 40 and 60 columns, and one that knows only Latin letters: nothing is cut, nothing breaks."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.looks.letters import PLAIN, use_plain_letters
from tests.draws import few
from tests.places import ROOT
from tests.rows import filled

RECIPE = """\
name: narrow
model: deepseek-v2-lite
cluster: {gpu: h100, nodes: 2}
training: {global_batch_size: 64}
parallelism: {ep: 8, pp: 1}
knobs: {use_distributed_optimizer: true, moe_flex_dispatcher_backend: hybridep}
burst: {engine: simulated, warmup_steps: 1, measure_steps: 5, trace_steps: 1}
tune: {freeze: [global_batch_size, seq_length, pipeline_model_parallel_layout]}
"""
COMMANDS = {
    "check": ["check", "r.yaml"],
    "estimate": ["estimate", "r.yaml"],
    "plan": ["plan", "r.yaml", "--top", "3"],
    "dry run": ["run", "r.yaml", "--dry-run"],
    "rules": ["check", "--rules"],
}
# dry runs cost most: these wait for make test-full
LATER = (("dry run", 40), ("dry run", 60))


@pytest.fixture(autouse=True)
def _recipes(empty_folder: Path) -> None:
    (empty_folder / "r.yaml").write_text(RECIPE)
    slow = (ROOT / "trainer" / "recipe" / "examples" / "cpu-moe-slow.yaml").read_text()
    (empty_folder / "too-large.yaml").write_text(slow.replace("memory_gib: 0.6", "memory_gib: 0.42"))


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        pytest.param(command, columns, marks=[pytest.mark.thorough] * ((command, columns) in LATER))
        for command in COMMANDS
        for columns in (40, 60)
    ],
)
def test_in_a_narrow_terminal_no_column_is_cut(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_uncut(in_columns(columns, COMMANDS[command], monkeypatch, capsys), columns)


def in_columns(
    columns: int, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(words) == 0
    return capsys.readouterr().out


def assert_uncut(said: str, columns: int) -> None:
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= columns
    assert not [line for line in said.splitlines() if re.match(r"\s*(%|GiB|ms|s)\b", line)]  # a unit without its figure


def test_a_dry_run_of_a_base_that_does_not_fit_is_not_cut_and_says_of_no_trial_that_it_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_columns(40, ["run", "too-large.yaml", "--dry-run"], monkeypatch, capsys)
    assert_uncut(said, 40)
    said = " ".join(said.split())
    assert "out of memory" not in said
    assert "trial 0 does not fit by estimate (limit 0.42 GiB)" in said


@pytest.mark.parametrize("encoding", few(["ascii", "latin-1", "cp1252"], 1))
def test_a_terminal_without_our_letters_gets_plain_ones(encoding: str) -> None:
    for words, code in ((COMMANDS["estimate"], 0), (["check", "nowhere.yaml"], 2)):
        run = subprocess.run(
            [sys.executable, "-m", "autotune.cli", *words],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding, "COLUMNS": "80"},
        )
        said = (run.stdout + run.stderr).decode(encoding)
        assert run.returncode == code, said
        assert "Traceback" not in said
        assert ("####" if code == 0 else "-> packaged examples") in said


def test_what_no_encoding_can_write_is_a_question_mark() -> None:
    """Names of files that are no text reach us as lone surrogates."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    use_plain_letters(stream)
    stream.write("trace\udcff → done")
    stream.flush()
    assert stream.buffer.getvalue() == "trace? → done".encode()


def test_every_plain_letter_is_one_that_every_encoding_has() -> None:
    assert all(plain.isascii() for plain in filled(PLAIN.values()))
