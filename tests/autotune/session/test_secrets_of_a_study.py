"""A study of a user's trainer that prints its credentials: none of them is in the study's files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.cli import main
from tests.conftest import HANG_S
from tests.policies.drawn import cpu_recipe
from trainer.recipe.dump import yaml_text

pytestmark = pytest.mark.usefixtures("light_agent")
FAKE = Path(__file__).parents[2] / "trainer/engines/command/fake_trainer.py"
HELD, SAID = "correct-horse-battery", "hf_" + "k" * 24


def asked(folder: Path, **trainer: object) -> Path:
    data = cpu_recipe().model_dump(mode="json", exclude_defaults=True)
    data["burst"] = {"engine": "command", "warmup_steps": 1, "measure_steps": 2, "trace_steps": 1, "deadline_s": HANG_S}
    acts = {"tell": ["MY_HUB_TOKEN", "OTHER"], "at": {"2": "crash"}, "with": "401 for $MY_HUB_TOKEN and $OTHER"}
    data["trainer"] = {"command": [sys.executable, str(FAKE), json.dumps(acts)], **trainer}
    path = folder / "base.yaml"
    path.write_text(yaml_text(data))
    return path


@pytest.mark.faults
def test_no_secret_that_a_trainer_prints_is_in_what_a_study_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_HUB_TOKEN", HELD)
    study, secret = tmp_path / "study", tmp_path / "own.sh"
    secret.write_text(f"export OTHER={SAID}\n")
    given = asked(tmp_path, setup=[f". {secret}"], env={"MY_HUB_TOKEN": "${MY_HUB_TOKEN}"})
    main(["run", str(given), "--budget", "1", "--study", str(study)])
    assert "401 for <left out>" in (study / "journal.jsonl").read_text()
    log = (study / "bursts/0001/log/rank1.log").read_text()  # the rank that crashes had printed before
    assert "env 1 MY_HUB_TOKEN=<left out>" in log
    assert "OTHER=<left out>" in log
    assert "401 for <left out>" in (study / "report.html").read_text().replace("&lt;", "<").replace("&gt;", ">")
    assert main(["report", str(study), "--json"]) == 0
    main(["status", str(study), "--json"])
    assert main(["export", str(study), "--to", "slurm", "--force"]) in (0, 1, 2)
    said = capfd.readouterr()
    left = [path for path in study.rglob("*") if path.is_file()]
    assert len(left) > 12
    for held in (HELD, SAID):
        assert [str(path) for path in left if held.encode() in path.read_bytes()] == []
        assert held not in said.out + said.err


@pytest.mark.faults
def test_a_setup_that_fails_ends_the_study_with_its_line_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_HUB_TOKEN", HELD)
    study = tmp_path / "study"
    given = asked(tmp_path, setup=["echo 401 for $MY_HUB_TOKEN >&2; conda activate moe"])
    assert main(["run", str(given), "--budget", "3", "--study", str(study)]) == 3
    said = capfd.readouterr().err
    assert "conda activate moe` ended with 127" in " ".join(said.split())
    assert "start a new study" in said
    left = [path for path in study.rglob("*") if path.is_file()]
    assert [str(path) for path in left if HELD.encode() in path.read_bytes()] == []
    assert HELD not in said
