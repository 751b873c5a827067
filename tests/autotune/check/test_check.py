"""`check`: findings by kind, a rule's page, and what is said where there is nothing to explain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autotune.check.document import rule_document
from autotune.check.findings import show_rule
from autotune.cli import main
from tests.rows import for_every_row
from trainer.recipe.rules import RULES, Rule


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@for_every_row(RULES, name=lambda rule: str(rule.id))
def test_every_rule_has_a_page_with_both_examples(rule: Rule, capsys: pytest.CaptureFixture[str]) -> None:
    show_rule(rule_document(rule))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for part in (rule.id, "message", "what to do", "applies to", "releases", "source", "violates", "passes"):
        assert part in said
    assert not re.search(r"\{\w+\}", said)


def test_a_page_is_printed_by_the_name_of_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "backend-without-flex"]) == 0
    assert "backend-without-flex" in capsys.readouterr().out


def test_a_page_can_be_had_as_a_document(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "backend-without-flex", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == 1
    assert document["rule"]["kind"] == "fallback"
    assert (
        document["rule"]["because"]
        == "this recipe asks for hybridep; without dispatcher flex it will silently run alltoall"
    )
    assert document["rule"]["breaking"] == {"knobs": {"moe_flex_dispatcher_backend": "hybridep"}}


def test_a_rule_that_does_not_exist_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "ep-overlap-mpt"]) == 2
    assert "did you mean ep-overlap-mtp" in capsys.readouterr().err
    assert main(["check", "--explain", "qqqq"]) == 2
    assert "check --rules` lists them all" in capsys.readouterr().err


def test_a_check_of_nothing_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "no recipe is named" in capsys.readouterr().err


BAD = """
name: bad
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2}
parallelism: {tp: 2, ep: 8}
knobs: {moe_flex_dispatcher_backend: hybridep, sequence_parallel: false}
"""


def test_findings_tell_the_framework_and_the_releases(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    assert main(["check", str(tmp_path / "bad.yaml"), "--json"]) == 1
    findings = json.loads(capfd.readouterr().out)["findings"]
    assert {"moe-tp-needs-sp", "backend-without-flex"} <= {finding["rule"] for finding in findings}
    assert all(finding["binds"] and finding["versions"] for finding in findings)


def test_refusals_of_a_recipe_come_before_its_silent_effects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    assert main(["check", str(tmp_path / "bad.yaml")]) == 1
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert said.index("error: ") < said.index("fallback: ") < said.index("nearest legal recipe: sequence_parallel")
