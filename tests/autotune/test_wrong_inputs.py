"""Wrong inputs over all commands: each ends with 2, says what, where and what to do, and leaves nothing behind."""

from __future__ import annotations

import gzip
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.cli import main

RECIPE = "model: deepseek-v2-lite\ncluster: {gpu: h100}\nparallelism: {ep: 8}\n"
TEXTS = {
    "good.yaml": RECIPE,
    "runs.yaml": RECIPE + "burst: {engine: simulated}\n",
    "list.json": "[1, 2, 3]",
    "null.json": "null",
    "events.json": '{"traceEvents": 3}',
    "odd_events.json": '{"traceEvents": [1, null, "a", {"ph": "X"}]}',
    "fake.sqlite": "hello",
    "fake.nsys-rep": "hello",
    "tag.yaml": "model: !!python/object/apply:os.system ['echo hi']\n",
    "two.yaml": RECIPE + "---\n" + RECIPE,
    "tabs.yaml": "model:\tx\n\tcluster: y\n",
    "date.yaml": RECIPE + "training: {seq_length: 2024-13-45}\n",
    "digits.yaml": RECIPE + "training: {seq_length: " + "9" * 5000 + "}\n",
    "launcher.yaml": RECIPE + "burst: {launcher: {slurm: {job: sometimes}}}\n",
    "nowhere_model.yaml": RECIPE.replace("deepseek-v2-lite", "./missing.json"),
    "damaged/journal.jsonl": '{"event": "x"}\nnot json\n',
    "newer/journal.jsonl": '{"event": "study", "schema": 99}\n',
    "started/journal.jsonl": "",
    "other_recipe/journal.jsonl": '{"event": "study", "version": "x", "name": "n", "recipe": {}, "digest": "d", '
    '"seed": 1, "environment": {}}\n',
    "null_key.yaml": RECIPE + "~: 2\n",
    "deep.yaml": "a: " + "[" * 1000 + "]" * 1000,
    "text_times.json": '{"traceEvents": [{"ph": "X", "name": "k", "ts": "a", "dur": 1, "cat": "kernel", "args": {}}]}',
    "backwards.json": '{"traceEvents": [{"ph": "X", "name": "k", "ts": 1, "dur": -5, "cat": "kernel"}]}',
    "brackets.json": '{"traceEvents": ' + "[" * 100_000,
    "empty.json": "",
}
WRONG = {
    "check tag.yaml": "it is not YAML",
    "check two.yaml": "another document",
    "check tabs.yaml": "it is not YAML",
    "check date.yaml": "month must be in 1..12",
    "check digits.yaml": "it is not YAML",
    "check launcher.yaml": "allocation, per-burst",
    "check nowhere_model.yaml": "no file missing.json",
    "check pipe": "it is not a regular file",
    "check good.yaml --for x@y": "no framework of that name",
    "check good.yaml --fix -o folder": "this is a folder",
    "estimate pipe": "it is not a regular file",
    "estimate good.yaml --imbalance 0.5": "Must be >= 1",
    "estimate good.yaml --pp-rank 3": "add --dry-run",
    "plan list.json": "it has no keys",
    "plan good.yaml --choice 0": "Must be > 0",
    "run pipe --dry-run": "it is not a regular file",
    "run good.yaml --until 25:99": "write HH:MM",
    "run good.yaml --max-gpu-hours nan": "Must be <= 1000000000",
    "run runs.yaml --study good.yaml": "name a folder that does not exist yet",
    "run runs.yaml --learn-from damaged": "not an event of a study",
    "run runs.yaml --resume --study folder": "not a study",
    "diagnose folder": "has no traces",
    "diagnose pipe": "is a pipe or a device",
    "diagnose list.json": "neither a Kineto trace nor an Nsight Systems export",
    "diagnose events.json": "has no events",
    "diagnose odd_events.json": "has no events",
    "diagnose fake.sqlite": "neither a Kineto trace nor an Nsight Systems export",
    "diagnose other.sqlite": "an SQLite database, but not an Nsight Systems export",
    "diagnose fake.nsys-rep": "neither a Kineto trace nor an Nsight Systems export",
    "diagnose hello.json.gz": "neither a Kineto trace nor an Nsight Systems export",
    "compare list.json null.json": "neither a Kineto trace nor an Nsight Systems export",
    "report damaged": "restore it, or start a new study",
    "report newer": "this version reads up to 1",
    "report started": "just starting, or was stopped before it did",
    "report piped": "not a study",
    "status damaged": "restore it, or start a new study",
    "watch folder": "not a study",
    "export good.yaml": "--to",
    "export good.yaml --to megatron-lm --for abc": "no version of Megatron-LM",
    "export damaged --to yaml": "not an event of a study",
    "export damaged/0 --to yaml": "not an event of a study",
    "export good.yaml --to yaml -o folder": "this is a folder",
    "init --model list.json": "has no model_type",
    "init --model pipe.json": "it is not a regular file",
    "init --gpus 1000000000": "Must be <= 1048576",
    "init --gpus 1e3": "'1e3' is not a whole number",
    "init --gpus 7.9": "'7.9' is not a whole number",
    "run runs.yaml --budget 1.5": "'1.5' is not a whole number",
    "run runs.yaml --seed -1": "Must be >= 0",
    "estimate good.yaml --imbalance inf": "Must be <= 10000",
    "estimate good.yaml --imbalance nan": "Must be <= 10000",
    "plan good.yaml --choice 9999 -o c.yaml": "has no choice 9999",
    "check null_key.yaml": "a key that is not text",
    "check dangling.yaml": "no such file or packaged example",
    "check deep.yaml": "nested too deeply",
    "report other_recipe": "line 1: not an event of a study: recipe.name: Field required",
    "status other_recipe": "line 1: not an event of a study",
    "run runs.yaml --learn-from other_recipe": "line 1: not an event of a study",
    "diagnose text_times.json": "has no events",
    "diagnose backwards.json": "no duration or a negative one",
    "diagnose brackets.json": "cut short",
    "diagnose empty.json": "the file is empty",
    "schema nothing": "Choose from",
    "schema plan -o folder": "this is a folder",
    "import folder": "it is a directory",
    "import empty.json": "the file is empty",
    "gap empty.json": "the file is empty",
    "import null.json": "no training command was reached",
    "import good.yaml --set X": "--set NAME=VALUE",
    "completion powershell": "Choose from",
    "doctor x": "Unused Tokens",
    "--nonsense": "Unknown command",
}


@pytest.fixture(autouse=True)
def _among_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("folder").mkdir()
    Path("piped").mkdir()
    Path("dangling.yaml").symlink_to("nothing")
    for name in ("pipe", "pipe.json", "piped/journal.jsonl"):
        os.mkfifo(name)
    Path("hello.json.gz").write_bytes(gzip.compress(b"hello"))
    with closing(sqlite3.connect("other.sqlite")) as other:
        other.execute("create table x(a)")


def test_a_link_to_nothing_is_not_named_in_its_own_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "dangling.yaml"]) == 2
    assert "did you mean dangling.yaml?" not in capsys.readouterr().err


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_input_is_a_clear_error_and_loses_nothing(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.lstat().st_size for path in Path().rglob("*")}
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert WRONG[words] in " ".join(said.err.split())
    assert "→ " in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert {path: path.lstat().st_size for path in Path().rglob("*")} == before
