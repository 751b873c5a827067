"""Every document validates against its schema, and a schema lists every field that is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import app, main
from autotune.schemas.documents import DOCUMENTS
from autotune.schemas.plain import Name
from autotune.schemas.schema import DIALECT, classes_of, schema_of
from tests.autotune.outside import SMALL
from tests.autotune.report.drawn_study import events, write_study
from tests.rows import filled

validators = pytest.importorskip("jsonschema", reason="without jsonschema (pip install '.[dev]')")

SCRIPT = """#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 \\
  --num-experts 8 --moe-ffn-hidden-size 1024 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 256 --vocab-size 32000 --expert-model-parallel-size 8 --bf16 --own-flag 3
"""
ILLEGAL = "model: qwen3-30b-a3b\ncluster: {gpu: h100, nodes: 2}\nparallelism: {tp: 3, ep: 8}\n"
SLOWER = SMALL.replace("{ep: 8}", "{ep: 4}").replace("global", "micro_batch_size: 2, global")
TOO_LARGE = "model: deepseek-v3\ncluster: {gpu: h100, nodes: 2}\nparallelism: {ep: 16}\n"
MACHINE = "estimate: {source: night, trials: 4, gpu: h100, factors: {gemm: {mean: -0.1, deviation: 0.05}}}\n"
# command lines and the document that each prints; `base` is a study of the simulated engine, `drawn` one with every
# kind of trial
PRINTED: tuple[tuple[Name, str], ...] = (
    ("report", "report base"),
    ("report", "report drawn"),
    ("dry-run", "run base.yaml --dry-run"),
    ("status", "status base"),
    ("status", "status drawn"),
    ("status", "status started"),
    ("status", "watch base"),
    ("studies", "studies ."),
    ("check", "check base.yaml"),
    ("check", "check illegal.yaml"),
    ("check", "check illegal.yaml --fix -o fixed.yaml --for megatron-lm"),
    ("check", "check --rules"),
    ("check", "check --explain heads-over-tp"),
    ("estimate", "estimate deepseek-v3-1024xh100"),
    ("estimate", "estimate base.yaml"),
    ("estimate", "estimate base.yaml --machine ours.yaml"),
    ("probe", "probe base.yaml"),
    ("plan", "plan deepseek-v3-1024xh100 --top 2"),
    ("plan", "plan too_large.yaml --top 1 -o choice.yaml"),
    ("plan", "plan base.yaml --top 1 --machine ours.yaml"),
    ("diagnose", "diagnose base/0"),
    ("diagnose", "diagnose drawn/1"),
    ("diagnose", "diagnose base/bursts/0001 --from 0 --to 5ms"),
    ("diagnose", "diagnose --explain drop_recompute"),
    ("compare", "compare base/0 base/1"),
    ("compare", "compare drawn/1 drawn/2"),
    ("gap", "gap base/0 --trace base/bursts/0001"),
    ("gap", "gap base.yaml --against P0265"),
    ("bisect", "bisect base.yaml slower.yaml --budget 3 --study halves"),
    ("bisect", "report halves"),
    ("bisect-plan", "bisect base.yaml slower.yaml --dry-run"),
    ("twin", "twin base -o twin.yaml"),
    ("export", "export base.yaml --to megatron-lm"),
    ("export", "export base --to slurm -o job.sh --force"),
    ("export", "export base --to optuna -o trials.db"),
    ("import", "import train.sh --gpu h100"),
    ("record", "record -- bash train.sh"),
    ("record", "record"),
    ("init", "init"),
    ("init", "init --model deepseek-v3 --gpus 8 -o starter.yaml"),
    ("doctor", "doctor"),
    ("completion", "completion bash"),
    ("schema", "schema"),
    ("error", "check nowhere.yaml"),
    ("error", "check --nonsense"),
    ("error", "estimate base.yaml --machine slow-network"),
    ("error", "diagnose base.yaml"),
)


@pytest.fixture(scope="module")
def folder(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields the folder that commands run in, with recipes and three studies."""
    folder = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        texts = {
            "base.yaml": SMALL,
            "illegal.yaml": ILLEGAL,
            "too_large.yaml": TOO_LARGE,
            "slower.yaml": SLOWER,
            "ours.yaml": MACHINE,
            "train.sh": SCRIPT,
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        write_study(folder / "drawn")
        write_study(folder / "started", events(ended=False)[:9])
        shutil.copytree(ended / "studies/sim-1", "base")
        yield folder


@pytest.mark.parametrize(("name", "line"), PRINTED, ids=[line for _, line in PRINTED])
def test_what_a_command_prints_is_what_its_schema_says(
    name: Name, line: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*line.split(), "--json"]) in ((2,) if name == "error" else (0, 1))
    validate(json.loads(capfd.readouterr().out), name)


@pytest.mark.cold
def test_a_dry_run_of_megatron_is_what_its_schema_says(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "cpu-moe-slow", "--dry-run", "--json"]) == 0
    validate(json.loads(capfd.readouterr().out), "estimate")


@pytest.mark.parametrize("study", ["base", "drawn", "started"])
def test_every_line_of_a_journal_and_every_file_of_a_study_is_what_its_schema_says(study: str, folder: Path) -> None:
    for line in filled((folder / study / "journal.jsonl").read_text().splitlines()):
        validate(json.loads(line), "journal")
    for file in (folder / study).glob("bursts/*/outcome.json"):
        validate(json.loads(file.read_text()), "outcome")
    for file in (folder / study).glob("report.json"):
        validate(json.loads(file.read_text()), "report")


def test_every_command_and_every_row_is_tried_here() -> None:
    tried = {line.split()[0] for _, line in PRINTED}
    assert {name for name in app() if not name.startswith("-")} - {"run"} == tried - {"run"}
    assert set(DOCUMENTS) == {name for name, _ in PRINTED} | {"journal", "outcome"}
    printed = {command.split()[0] for document in DOCUMENTS.values() for command in document.commands}
    assert printed == {name for name in app() if not name.startswith("-")}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_one_and_says_where_it_comes_from(name: Name) -> None:
    schema = schema_of(name)
    validators.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["title"] == name


def test_what_is_missing_of_another_kind_or_not_in_the_schema_is_found() -> None:
    said: dict[str, Any] = {
        "schema": 1,
        "found": [{"what": "a", "status": "found", "found": "", "needed_for": "b", "how": ""}],
    }
    validate(said, "doctor")
    first = said["found"][0]
    for wrong in ({**first, "status": "perhaps"}, {**first, "how": None}, {**first, "more": 1}, {"what": "a"}):
        with pytest.raises(validators.ValidationError):
            validate({**said, "found": [wrong]}, "doctor")


def test_comments_and_docstrings_of_types_are_descriptions_in_the_schema() -> None:
    parts = schema_of("plan")["$defs"]
    assert parts["Layout"]["properties"]["spread"]["description"] == "relative half width of the 90 % interval"
    finding = schema_of("diagnose")["$defs"]["WallFinding"]["properties"]
    assert finding["speedup_bound"]["description"].startswith("upper bound on the speed-up without this wall")
    assert next(iter(schema_of("doctor")["$defs"]["Found"]["properties"])) == "what"


def test_no_two_types_of_a_document_share_a_name() -> None:
    for document in filled(DOCUMENTS.values()):
        names = [kind.__name__ for kind in classes_of(*document.types)]
        assert len(names) == len(set(names))


def test_a_schema_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["schema", "report"]) == 0
    report, plan = (json.loads(json.dumps(schema)) for schema in (schema_of("report"), schema_of("plan")))
    assert json.loads(capfd.readouterr().out) == report
    assert main(["schema", "plan", "-o", "plan.schema.json"]) == 0
    assert json.loads(Path("plan.schema.json").read_text()) == plan
    assert main(["schema", "plan", "-o", "plan.schema.json"]) == 2
    assert main(["schema", "reports"]) == 2
    assert "Choose from" in capfd.readouterr().err


def validate(document: Any, name: Name) -> None:
    """Validates against the schema, and against a copy that forbids unlisted fields."""
    for validator in _validators(name):
        validator.validate(document)


@cache
def _validators(name: Name) -> tuple[Any, ...]:
    schema = schema_of(name)
    return tuple(validators.Draft202012Validator(each) for each in (schema, _closed(schema)))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed
