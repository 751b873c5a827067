"""`estimate --dry-run`: its answer, a refusal by Megatron-Core, and the message if the dry run itself crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from trainer import dry_run

SMALL = """\
name: small
model: {num_layers: 4, hidden_size: 128, num_attention_heads: 4, vocab_size: 512, num_moe_experts: 8,
        moe_ffn_hidden_size: 64}
cluster: {gpu: h100, nodes: 2, gpus_per_node: 8}
training: {seq_length: 256, global_batch_size: 64}
parallelism: {pp: 2, ep: 4}
knobs: {use_distributed_optimizer: true, moe_grouped_gemm: true}
"""


def estimated(folder: Path, text: str, *words: str) -> int:
    """Returns the exit code of `estimate FILE --dry-run` with these arguments."""
    (folder / "recipe.yaml").write_text(text)
    return main(["estimate", str(folder / "recipe.yaml"), "--dry-run", *words])


@pytest.mark.megatron
def test_the_document_lists_the_memory_of_the_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = estimated(tmp_path, SMALL, "--json", "--pp-rank", "1")
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    shown = document["dry_run"]
    assert code == 0
    assert document["memory"]["peak_gib"] > 0
    assert (shown["pp_rank"], shown["rank"], shown["world_size"]) == (1, 8, 16)
    assert (shown["refused"], shown["stopped"]) == (None, None)
    assert set(shown["by_part_gib"]) == set(shown["closed_form_gib"]) == set(dry_run.STATE)
    assert abs(shown["difference_pct"]) < 0.5
    assert {row["knob"] for row in shown["stand_ins"]} >= {"moe_expert_capacity_factor"}
    assert shown["cannot_know"]


@pytest.mark.megatron
@pytest.mark.cold
def test_a_layout_that_megatron_refuses_ends_with_its_words_and_exit_code_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = estimated(tmp_path, SMALL.replace("ep: 4", "ep: 3"))
    said = capfd.readouterr().out
    assert code == 1
    assert "refuses this layout" in said
    assert "in process groups, RuntimeError: world_size (16) is not divisible by" in said


def test_a_rank_there_is_none_of_is_bad_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = estimated(tmp_path, SMALL, "--pp-rank", "2")
    assert code == 2
    assert "there is no pipeline rank 2" in capfd.readouterr().err


def test_a_pipeline_rank_without_a_dry_run_is_bad_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text(SMALL)
    assert main(["estimate", str(tmp_path / "recipe.yaml"), "--pp-rank", "1"]) == 2
    assert "--dry-run" in capfd.readouterr().err


def test_a_hybrid_model_is_refused_before_anything_is_built(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "name: h\nmodel: nemotron-3-nano-30b-a3b\ncluster: {gpu: h100, nodes: 1}\nburst: {engine: simulated}\n"
    code = estimated(tmp_path, text)
    assert code == 2
    assert "GPTModel cannot build" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", ["SIGKILL", "out of memory"]),
        ("raise ModuleNotFoundError('No module named megatron')", ["No module named megatron", "doctor"]),
        ("import os; os.abort()", ["SIGABRT", "does not affect the layout"]),
    ],
)
def test_a_dry_run_that_dies_is_a_message(
    program: str, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(dry_run, "MODULE", "dying")
    code = estimated(tmp_path, SMALL)
    said = capfd.readouterr().err
    assert code == 3
    assert "Traceback" not in said
    assert all(word in said for word in words)
