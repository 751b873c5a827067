"""Lines that prepare the shell of every rank: the trainer finds what they made; their failure is reported as theirs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.export import export
from tests.trainer.engines.command.test_burst import FAKE, recipe, run
from trainer.burst import BurstPhase, FailureKind
from trainer.engines.command.setup import NotPrepared, not_prepared, script_of, start_of
from trainer.errors import ToolError
from trainer.launch_scripts.login import is_login

pytestmark = pytest.mark.faults

TOLD = ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MODULE", "MINE", "TWICE", "PYTHONSAFEPATH"]
VARIABLES = {"MINE": "the recipe's", "TWICE": "${TWICE}:more", "LD_LIBRARY_PATH": "${LD_LIBRARY_PATH}:/mine"}


def environment_made(folder: Path) -> tuple[str, ...]:
    """Writes a module system and a virtual environment with a `python` of its own; returns the setup lines that use
    them."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "modules.sh").write_text(
        'module() { export MODULE="$2" LD_LIBRARY_PATH="/modules/$2:${LD_LIBRARY_PATH:-}" MINE=theirs; }\n'
    )
    (folder / "bin" / "activate").write_text(
        f'export PATH="{folder}/bin:$PATH" PYTHONPATH=/of/venv\nTWICE=once; export TWICE\nhash -r\n'
    )
    return (f". {folder}/modules.sh", "module load cuda", f"source {folder}/bin/activate")


def environment(text: str, rank: int) -> dict[str, str]:
    return dict(re.findall(rf"env {rank} (\w+)=(.*)", text))


def test_ranks_have_the_environment_that_the_exported_script_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.setenv("PYTHONPATH", "/mine/before")
    given: dict[str, Any] = {"setup": environment_made(tmp_path), "env": VARIABLES}
    command = ["python", str(FAKE), json.dumps({"tell": TOLD})]
    outcome = run(tmp_path, {}, command=command, **given)
    assert outcome.failure is None
    script = tmp_path / "exported.sh"
    script.write_text(export(recipe({}, command=command, **given), "megatron-lm"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # torchrun's
    done = subprocess.run(
        ["bash", str(script), "--exit-interval", "1"], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        here = environment((tmp_path / f"0001/log/rank{rank}.log").read_text(), rank)
        exported = environment(done.stdout, rank)
        injected, _, here["PYTHONPATH"] = here["PYTHONPATH"].partition(":")
        assert injected.endswith("engines/command/injected")
        exported["PATH"] = exported["PATH"].replace(path, os.environ["PATH"])
        assert here == exported
        assert (here["MODULE"], here["MINE"]) == ("cuda", "the recipe's")
        assert here["LD_LIBRARY_PATH"] == "/modules/cuda:/before:/mine"
        assert here["TWICE"] == "once:more"
        assert here["PATH"].startswith(f"{tmp_path}/bin:")


def test_a_setup_line_that_fails_is_reported_and_is_not_the_recipes_failure(tmp_path: Path) -> None:
    with pytest.raises(
        ToolError, match=r"trainer.setup: `module load cuda` ended with 127: .*module: .*not found"
    ) as it:
        run(tmp_path, {}, setup=["true", "module load cuda"])
    assert "nothing was learned about the recipe" in str(it.value)
    assert "#!/bin/bash -l" in str(it.value)
    assert not list((tmp_path / "engine/jobs").glob("*/*"))
    logs = [path.read_text() for path in (tmp_path / "0001/log").glob("rank*.log")]
    assert any("module: command not found" in log for log in logs)  # the first that failed ended the other


def test_what_fails_on_one_rank_alone_is_the_machines_fault(tmp_path: Path) -> None:
    waits = 'until grep -q done "$MOE_AUTOTUNE_OUT/rank0.setup"; do sleep 0.05; done'
    failure = run(tmp_path, {"step_s": 1.0}, setup=[f'if [ "$RANK" = 1 ]; then {waits}; ls /no/mount; fi']).failure
    assert failure is not None
    assert (failure.kind, failure.phase, failure.rank) == (FailureKind.INFRASTRUCTURE, BurstPhase.START, 1)
    assert "ended with 2: ls: cannot access '/no/mount'" in failure.evidence


def seen(
    folder: Path, *lines: str, deaths: dict[int, int] | None = None, overdue_s: float | None = None
) -> NotPrepared | None:
    return not_prepared(
        lines,
        folder,
        ranks=2,
        deaths=deaths or {},
        outputs=lambda rank: [folder / f"rank{rank}.err"],
        overdue_s=overdue_s,
    )


def prepared(folder: Path, *lines: str, rank: int = 0) -> int:
    """Returns the exit code of a rank that runs the lines and then starts nothing."""
    script = folder / "setup.sh"
    script.write_text(script_of(lines, {}, pythonpath="", injected=None))
    env = {**os.environ, "RANK": str(rank), "MOE_AUTOTUNE_OUT": str(folder), "HOME": str(folder)}
    with (folder / f"rank{rank}.err").open("w") as log:
        return subprocess.run(
            [*start_of(lines, script), "true"], env=env, cwd=folder, stderr=log, check=False
        ).returncode


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("false", "`false` ended with 1"),
        (". ./ends.sh", "`. ./ends.sh` ended with 3: no such license"),
        ("set -e; false; true", "`set -e; false; true` ended with 1"),
        ("echo 'open", "unexpected EOF"),
        ("ulimit -n 99999999999", "Operation not permitted|Invalid argument|invalid number|cannot modify limit"),
    ],
)
def test_however_a_line_fails_it_is_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "ends.sh").write_text("echo no such license >&2\nexit 3\n")
    code = prepared(tmp_path, "true", line)
    assert code != 0
    found = seen(tmp_path, "true", line, deaths={0: code})
    assert found is not None
    assert re.search(said, str(found.error()))
    assert not found.others


def test_lines_that_may_fail_do_and_the_trainer_starts(tmp_path: Path) -> None:
    lines = ("no_such_module load cuda 2>/dev/null || true", "declare -A HELD=([a]=b)", '[ "${HELD[a]}" = b ]')
    assert prepared(tmp_path, *lines) == 0
    assert seen(tmp_path, *lines, overdue_s=5.0) is None


def test_a_line_that_does_not_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank1.setup").write_text("1\n")
    lines = ("true", "module load slow")
    found = seen(tmp_path, *lines, deaths={1: -9}, overdue_s=1800.0)
    assert found is not None
    assert "`module load slow` did not end within 1800 s" in str(found.error())
    assert seen(tmp_path, *lines, deaths={1: -15}) is None
    killed = seen(tmp_path, *lines, deaths={1: -9})
    assert killed is not None
    assert "was killed by SIGKILL" in killed.failure().evidence


def test_a_login_shell_is_one_in_a_burst_and_in_an_export(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("module() { export MODULE=$2; }\n")
    setup = ("#!/bin/bash -l", "module load cuda", '[ "$MODULE" = cuda ]')
    assert prepared(tmp_path, *setup) == 0
    assert prepared(tmp_path, *setup[1:]) == 127
    for target in ("slurm", "megatron-lm"):
        lines = export(recipe({}, setup=setup), target).splitlines()
        assert lines[0] == setup[0]
        assert lines.count(setup[0]) == 1


@pytest.mark.parametrize(
    ("line", "login"),
    [
        ("#!/bin/bash -l", True),
        ("#! /usr/bin/bash --login", True),
        ("#!/usr/bin/env -S bash -l", True),
        ("#!/bin/bash -el", True),
        ("#!/bin/bash", False),
        ("#!/bin/bash -e", False),
        ("#!/usr/bin/env bash", False),
        ("#!/bin/sh -l", False),
        ("module load x -l", False),
    ],
)
def test_the_first_line_shows_a_login_shell(line: str, login: bool) -> None:
    assert is_login(line) is login


def test_another_setup_is_another_experiment_and_none_is_as_before() -> None:
    plain, prepared = recipe({}), recipe({}, setup=["module load cuda"])
    assert plain.digest() != prepared.digest()
    assert plain.digest() == recipe({}, setup=[]).digest()
