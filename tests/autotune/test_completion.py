"""Completion in bash, zsh and fish: scripts that real shells take, and that offer what there is."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from autotune.cli import main
from tests.conftest import HANG_S

needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="without zsh")
needs_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="without fish")
# ways to load the script in zsh: a file on its path of functions, under either name, or by eval
WAYS = {
    "_cyclopts_moe-autotune": "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -D -u",
    "_moe-autotune": "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -D -u",
    "script": 'autoload -Uz compinit; compinit -D -u; eval "$(cat functions/script)"',
}


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("my_recipe.yaml").touch()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_files(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("moe-autotune", "diagnose", "max-gpu-hours"):
        assert word in script


def test_bash_takes_the_completion_and_offers_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    Path("script").write_text(capsys.readouterr().out)
    asked = 'source ./script; COMP_CWORD=$(($#-1)); COMP_WORDS=("$@"); _moe_autotune; echo ${COMPREPLY[@]}'

    def offered(*words: str) -> str:
        return subprocess.run(["bash", "-c", asked, "bash", *words], capture_output=True, text=True, check=True).stdout

    assert "plan" in offered("moe-autotune", "pl")
    assert "--choice" in offered("moe-autotune", "plan", "--ch")
    assert "my_recipe.yaml" in offered("moe-autotune", "check", "my")


def test_completion_is_installed_where_the_shell_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".bashrc").write_text("alias ll=ls\n")
    assert main(["completion", "bash", "--install"]) == 0
    assert (tmp_path / ".local/share/bash-completion/completions/moe-autotune").is_file()
    assert (tmp_path / ".bashrc").read_text().startswith("alias ll=ls\n")
    assert "start a new bash" in capsys.readouterr().out


@needs_fish
def test_fish_takes_the_completion_and_offers_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    Path("script.fish").write_text(capsys.readouterr().out)

    def offered(line: str) -> list[str]:
        asked = ["fish", "--no-config", "-c", f"source script.fish; complete -C '{line}'"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        return [each.partition("\t")[0] for each in said.splitlines()]

    assert offered("moe-autotune pl") == ["plan"]
    assert offered("moe-autotune plan --ch") == ["--choice"]
    assert offered("moe-autotune completion zs") == ["zsh"]
    assert offered("moe-autotune check my") == ["my_recipe.yaml"]


@needs_zsh
@pytest.mark.parametrize("name", WAYS)
def test_zsh_takes_the_completion_and_offers_what_is_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    Path("functions").mkdir()
    Path("functions", name).write_text(capsys.readouterr().out)
    lines = {
        f"{WAYS[name]}; moe-autotune() {{ print -r -- \"<$1 $2 $3>\" }}; print '<'rea'dy>'": "<ready>",
        "moe-autotune pl\t --ch\t": "<plan --choice >",
        "moe-autotune completion zs\t": "<completion zsh >",
        "moe-autotune schema comp\t": "<schema comp",  # compare, completion
        "moe-autotune check my\t": "<check my_recipe.yaml >",
    }
    typed(["zsh", "-f", "-i"], lines)


def typed(shell: list[str], lines: dict[str, str]) -> None:
    """Types each line into an interactive shell, and waits for what it shows."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(shell[0], shell, {**os.environ, "TERM": "dumb", "COLUMNS": "200"})
    try:
        for line, wanted in lines.items():
            os.write(terminal, f"{line}\n".encode())
            _await(terminal, wanted)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def _await(terminal: int, wanted: str) -> None:
    shown, end = "", time.monotonic() + HANG_S
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{wanted!r} is not in {shown!r}"
        shown += os.read(terminal, 65536).decode(errors="replace")
