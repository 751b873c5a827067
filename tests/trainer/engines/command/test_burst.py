"""Bursts of a trainer that is not ours: their outcomes, and that no process or file of them remains."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import HANG_S
from tests.policies.drawn import cpu_recipe
from trainer.burst import Burst, BurstPhase, FailureKind, Outcome
from trainer.engines.command.engine import CommandEngine
from trainer.engines.command.follow import Patience
from trainer.engines.command.job import KEPT_BYTES
from trainer.engines.command.stacks import py_spy
from trainer.launchers.processes import marked
from trainer.recipe import Recipe

pytestmark = pytest.mark.usefixtures("light_agent")  # torchrun's own starts such a trainer in test_setup

OF_THE_RECIPE = ("burst.json", "command.txt")  # these files quote the recipe
FAKE = Path(__file__).with_name("fake_trainer.py")
SLOW = {"name": "toy", "bf16_tflops": 5.0, "memory_gib": 40.0, "hbm_tb_s": 1.0, "nvlink_gb_s": 100.0}


def recipe(acts: dict[str, Any], *, gpu: dict[str, Any] | None = None, **trainer: Any) -> Recipe:
    base = cpu_recipe()
    data = base.model_dump(mode="json")
    data["cluster"]["gpu"] = gpu or data["cluster"]["gpu"]
    data["burst"] |= {
        "engine": "command",
        "warmup_steps": 2,
        "measure_steps": 4,
        "trace_steps": 1,
        "deadline_s": HANG_S,
    }
    data["trainer"] = {"command": [sys.executable, str(FAKE), json.dumps(acts)], "env": {}, **trainer}
    return Recipe.model_validate(data)


LONG = Patience(first_s=240, all_s=240, least_s=60.0, writing_s=60.0, ending_s=60.0)
SHORT = replace(LONG, least_s=4.0, writing_s=4.0, ending_s=1.0)  # for tests in which the limit passes


def run(folder: Path, acts: dict[str, Any], *, patience: Patience = LONG, **trainer: Any) -> Outcome:
    engine = CommandEngine(folder / "engine", patience=lambda recipe, trainer: patience)
    outcome = engine.run(Burst(number=1, recipe=recipe(acts, **trainer), folder=folder / "0001"))
    ours = [env for _, env in marked() if env.get("MOE_AUTOTUNE_OUT", "").startswith(str(folder))]
    assert ours == []
    return outcome


def test_a_burst_reads_the_measured_steps_between_warm_up_and_profile(tmp_path: Path) -> None:
    outcome = run(tmp_path, {}, gpu=SLOW)
    assert outcome.failure is None
    assert outcome.step_us == [3000.0, 4000.0, 5000.0, 6000.0]  # iterations 3 to 6; 7 to 9 are the profiler's
    assert outcome.loss[:2] == [5.99, 5.98]
    assert outcome.reported_tflops_per_gpu == 12.5
    assert any("the trainer reports 12 TFLOP/s per GPU" in text for text in outcome.warnings)
    assert outcome.cost_s is not None
    assert sorted(path.name for path in (tmp_path / "0001" / "trace").iterdir()) == [
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
    ]
    assert not list((tmp_path / "0001").rglob("*tfevents*"))  # they quote every argument
    command = (tmp_path / "0001" / "command.txt").read_text()
    assert "--exit-interval 9 " in command
    assert "fake_trainer.py" in command


@pytest.mark.faults
def test_lines_are_read_however_they_look(tmp_path: Path) -> None:
    # the first two are warm-up, whose times are not measured: their looks come again in the last
    looks = [["joined"], ["comma"], ["bar"], ["colour"], ["twice"], ["comma", "colour", "joined", "bar"]]
    outcome = run(tmp_path, {"looks": looks, "step_s": 1.2}, trace="none")
    assert outcome.failure is None
    assert outcome.step_us == [1203000.0, 1204000.0, 1205000.0, 1206000.0]
    assert outcome.loss == [5.99, 5.98, 5.97, 5.96, 5.95, 5.94]
    assert (outcome.reported_tflops_per_gpu, set(outcome.grad_norm)) == (12.5, {0.7})


@pytest.mark.faults
def test_a_trainer_that_resumes_from_a_checkpoint_is_a_configuration_failure(tmp_path: Path) -> None:
    failure = run(tmp_path, {"first": 1001}).failure
    assert failure is not None
    assert failure.kind is FailureKind.CONFIG
    assert "the first line of the trainer is of iteration 1001: it resumed from a checkpoint" in failure.evidence


@pytest.mark.faults
def test_a_trainer_that_ends_well_without_an_iteration_has_failed(tmp_path: Path) -> None:
    failure = run(tmp_path, {"at": {"1": "short"}}).failure
    assert failure is not None
    assert failure.kind is FailureKind.CONFIG
    assert "without an iteration line" in failure.evidence


@pytest.mark.faults
def test_no_process_that_a_trainer_leaves_outlives_its_burst(tmp_path: Path) -> None:
    before = sleepers()
    outcome = run(tmp_path, {"orphan": ["own", "empty"]})
    assert outcome.failure is None
    assert sleepers() <= before


def sleepers() -> set[int]:
    """Returns the processes that fake trainers have left."""
    found = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {pid for pid in found if _command(pid) == b"/bin/sleep\x00300\x00"}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.faults
def test_of_a_log_that_is_large_the_ends_are_kept_and_all_is_read(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"noise_mib": 24}, trace="none")
    assert outcome.failure is None
    assert len(outcome.step_us) == 4
    kept = max(path.stat().st_size for path in (tmp_path / "0001" / "log").iterdir())
    assert 2 * KEPT_BYTES < kept < 2 * KEPT_BYTES + 1000


@pytest.mark.faults
@pytest.mark.parametrize(
    ("acts", "kind", "phase", "evidence"),
    [
        # an exception that was caught before is not the cause
        ({"at": {"3": "handled", "4": "oom"}}, FailureKind.OOM, BurstPhase.BACKWARD, "CUDA out of memory"),
        ({"at": {"4": "crash"}}, FailureKind.CRASH, BurstPhase.BACKWARD, "something broke"),
        ({"refuse": "EP must divide"}, FailureKind.CONFIG, BurstPhase.INIT, "EP must divide"),
    ],
)
def test_causes_of_a_trainers_failure_are_distinguished(
    tmp_path: Path, acts: dict[str, Any], kind: FailureKind, phase: BurstPhase, evidence: str
) -> None:
    failure = run(tmp_path, acts).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == (kind, phase), failure
    assert evidence in failure.evidence


@pytest.mark.faults
def test_a_trainer_that_ends_early_says_after_which_iteration(tmp_path: Path) -> None:
    failure = run(tmp_path, {"at": {"4": "short"}}).failure
    assert failure is not None
    assert "after iteration" in failure.evidence
    assert "its schedule must allow" in failure.evidence


@pytest.mark.faults
def test_a_missing_iteration_line_is_a_hang_and_the_ranks_say_where_they_are(tmp_path: Path) -> None:
    failure = run(tmp_path, {"at": {"4": "hang"}, "step_s": 0.01}, patience=SHORT).failure
    assert failure is not None
    assert failure.kind is FailureKind.HANG
    assert "fake_trainer.py" in failure.evidence


@pytest.mark.faults
def test_a_trainer_that_does_not_end_after_its_last_iteration_is_ended(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"linger": True}, patience=SHORT)
    assert outcome.failure is None
    assert any("did not exit" in text for text in outcome.warnings)


@pytest.mark.faults
def test_a_command_that_does_not_exist_is_an_import_failure(tmp_path: Path) -> None:
    failure = run(tmp_path, {}, command=["/no/such/python", "x.py"]).failure
    assert failure is not None
    assert failure.kind is FailureKind.IMPORT
    assert "/no/such/python" in failure.evidence


@pytest.mark.faults
def test_a_custom_trainer_gets_the_recipe_where_its_template_says(tmp_path: Path) -> None:
    acts = json.dumps({})
    command = [sys.executable, str(FAKE), acts, "--exit-interval", "{iterations}", "{args}", "--out={out}"]
    outcome = run(tmp_path, {}, kind="custom", command=command, trace="none")
    assert outcome.failure is None
    assert len(outcome.step_us) == 4
    words = (tmp_path / "0001" / "command.txt").read_text()
    assert "--num-layers" in words
    assert f"--out={tmp_path / '0001' / 'trainer'}" in words


@pytest.mark.faults
@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_ranks_without_our_sitecustomize_are_asked_by_py_spy(tmp_path: Path) -> None:
    failure = run(tmp_path, {"at": {"4": "hang"}, "step_s": 0.01}, patience=SHORT, inject=False).failure
    assert failure is not None
    assert failure.kind is FailureKind.HANG
    for rank in (0, 1):
        assert "act (" in (tmp_path / "0001" / "log" / f"py-spy-rank{rank}.txt").read_text()


@pytest.mark.faults
def test_a_value_that_is_not_a_number_is_reported_and_does_not_spoil_the_journal(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"at": {"4": "nan"}})
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.NAN, BurstPhase.FORWARD)
    assert "NaN iteration at iteration 4" in outcome.failure.evidence
    written = (tmp_path / "0001" / "outcome.json").read_bytes()
    assert msgspec.json.decode(written, type=Outcome) == outcome
    assert len(outcome.grad_norm) == len(outcome.loss) - 1


@pytest.mark.faults
def test_a_variable_that_names_itself_keeps_what_is_inherited(tmp_path: Path) -> None:
    outcome = run(tmp_path, {}, env={"PATH": "/no/such/folder:${PATH}", "MINE": "x"})
    assert outcome.failure is None


@pytest.mark.faults
def test_no_secret_that_a_trainer_prints_is_in_what_a_burst_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_HUB_TOKEN", "correct-horse")
    said = "401 for correct-horse, WANDB_API_KEY=battery-staple"
    failure = run(tmp_path, {"refuse": said}, env={"MY_HUB_TOKEN": "${MY_HUB_TOKEN}"}).failure
    assert failure is not None
    assert "401 for <left out>, WANDB_API_KEY=<left out>" in failure.evidence
    left = [path for path in (tmp_path / "0001").rglob("*") if path.is_file() and path.name not in OF_THE_RECIPE]
    assert len(left) > 3
    assert not [path for path in left if b"correct-horse" in path.read_bytes() or b"staple" in path.read_bytes()]


NSYS = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in -o) out=$2; shift 2;; -s|-t) shift 2;; profile|--*) shift;; *) break;; esac
done
env > "$out.nsys-rep"
exec "$@"
"""


@pytest.mark.faults
def test_secrets_that_nsights_files_may_hold_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(NSYS)
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("MY_HUB_TOKEN", "correct-horse")
    monkeypatch.setenv("MY_PLAIN_NAME", "battery-staple")
    outcome = run(tmp_path, {}, trace="nsys")
    assert outcome.failure is None
    assert (tmp_path / "0001/trace/rank0.nsys-rep").exists()
    said = [text for text in outcome.warnings if "Nsight's files in trace/ may hold the values of" in text]
    assert any("MY_HUB_TOKEN" in text for text in said)
    assert not any("MY_PLAIN_NAME" in text for text in said)


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("nsys") is not None, reason="Nsight Systems is installed")
def test_a_profiler_that_is_not_installed_is_named(tmp_path: Path) -> None:
    failure = run(tmp_path, {}, trace="nsys").failure
    assert failure is not None
    assert failure.kind is FailureKind.IMPORT, failure
    assert "nsys: not found" in failure.evidence
