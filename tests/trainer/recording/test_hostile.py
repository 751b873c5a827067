"""Scripts that try to change files and processes of others: none of it succeeds, in every isolation, as root and as
nobody.

Each line of `hostile.txt` runs in a shell of its own, all of them in one recording. A mode that this machine does not
allow is skipped with its reason; the report of a run names the modes that were tested.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S
from tests.trainer.recording.modes import MODES
from trainer.recording.jail import DEVICES, Isolation
from trainer.recording.record import ROOT

LINES = Path(__file__).with_name("hostile.txt").read_text().splitlines()
NOBODY = 65534
TRIES = """
import json, sys
from trainer.recording.jail import Isolation
from trainer.recording.record import FIRST, JobCommand, _run, isolation_here
asked = JobCommand(argv=("bash", sys.argv[2]), cwd="/", limit_s=%d, env={"HOME": sys.argv[3]})
if sys.argv[1] == "any":
    try:
        found = {"isolation": isolation_here()}
    except Exception as error:
        found = {"isolation": None, "why": str(error)}
else:
    found = _run(asked, FIRST, Isolation(sys.argv[1]))
json.dump(found, sys.stdout)
"""
PYTHON = next((path for path in ("/usr/bin/python3.13", "/usr/bin/python3.12", "/usr/bin/python3.11")
               if os.path.exists(path)), None)  # one that user nobody may run  # fmt: skip


def _later(mode: Isolation) -> Any:
    return pytest.param(mode, marks=pytest.mark.thorough)


AS = [
    pytest.param(os.getuid(), id="root" if os.getuid() == 0 else "user"),
    pytest.param(NOBODY, id="nobody", marks=pytest.mark.thorough),
]


@dataclass(kw_only=True)
class Prey:
    """Targets of a hostile script: a folder of files, a home, a port, a socket and a process."""

    folder: Path
    home: Path
    port: int
    process: subprocess.Popen[bytes]
    sockets: list[socket.socket]

    def filled(self, line: str) -> str:
        return line.replace("@D", str(self.folder)).replace("@PID", str(self.process.pid)).replace("@P", str(self.port))

    def state(self) -> dict[str, tuple[object, ...]]:
        """Returns every file with its contents, mode, owner and times (except those that a reader changes)."""
        found: dict[str, tuple[object, ...]] = {}
        for top in (self.folder, self.home):
            for path in [top, *sorted(top.rglob("*"))]:
                info = path.lstat()
                text = path.read_bytes() if path.is_file() else b""
                found[str(path)] = (text, info.st_mode, info.st_uid, info.st_mtime_ns, info.st_ctime_ns, info.st_nlink)
        return found

    def was_called(self) -> bool:
        for each in self.sockets:
            try:
                each.recvfrom(1) if each.type == socket.SOCK_DGRAM else each.accept()
            except BlockingIOError:
                continue
            return True
        return False


@pytest.fixture(params=AS)
def prey(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, Prey]]:
    user = int(request.param)
    if user != os.getuid() and os.getuid() != 0:
        pytest.skip("only root can become another user")
    if user == NOBODY and PYTHON is None:
        pytest.skip("no Python from 3.11 to 3.13 in /usr/bin that another user may run")
    for each in (tmp_path, *tmp_path.parents):  # pytest's own folders, which another user may not enter
        if each.stat().st_uid == os.getuid() and not each.stat().st_mode & 0o001:
            each.chmod(0o755)
    folder, home = tmp_path / "prey", tmp_path / "home"
    for each in (folder, home, folder / "empty"):
        each.mkdir()
    for file in (folder / "keep.txt", folder / "other.txt", home / ".bashrc"):
        file.write_text("kept\n")
    sockets = [socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
    sockets[0].bind(("127.0.0.1", 0))
    port = int(sockets[0].getsockname()[1])
    sockets[1].bind(("127.0.0.1", port))
    sockets.append(socket.socket(socket.AF_UNIX))
    os.chdir(folder)  # a socket's path may have 107 letters only
    sockets[2].bind("socket")
    os.chdir(ROOT)
    for path in [folder, home, *folder.iterdir(), *home.iterdir()]:
        os.chown(path, user, -1)
    for listener in sockets:
        listener.setblocking(False)
        if listener.type == socket.SOCK_STREAM:
            listener.listen()
    process = subprocess.Popen(["sleep", "600"], user=user if os.getuid() == 0 else None)
    yield user, Prey(folder=folder, home=home, port=port, process=process, sockets=sockets)
    process.kill()
    process.wait()
    for listener in sockets:
        listener.close()


def tried(user: int, mode: str, script: Path, home: Path, *before: str) -> dict[str, Any]:
    """Returns the recording, made in a process of that user."""
    python = str(PYTHON) if user != os.getuid() or before else sys.executable
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user != os.getuid() else []
    done = subprocess.run(
        [*before, *become, python, "-c", TRIES % HANG_S, mode, str(script), str(home)], capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("mode", [Isolation.NAMESPACES, *(_later(mode) for mode in list(Isolation)[1:])])
def test_nothing_of_200_hostile_lines_happens(mode: Isolation, prey: tuple[int, Prey]) -> None:
    user, prey_of = prey
    script = prey_of.home.parent / "hostile.sh"
    each_line = [f"bash -c {_quoted(prey_of.filled(line))} </dev/null" for line in LINES]
    script.write_text("\n".join([*each_line, "python pretrain_gpt.py --num-layers 2 --hidden-size 8", ""]))
    script.chmod(0o755)
    before, places = prey_of.state(), _places()
    found = tried(user, mode, script, prey_of.home)
    if "impossible" in found:
        pytest.skip(f"{mode} is not possible here: {found['impossible']}")
    MODES.append(f"{mode} as {'root' if user == 0 else user}")
    assert found["why"] is None, found
    assert len(found["trains"]) == 1, found["stderr"]
    assert prey_of.state() == before
    assert _places() == places
    assert not prey_of.was_called()
    assert prey_of.process.poll() is None
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if os.fsencode(script) in _bytes(path)]


def test_what_a_recording_saw_runs_nowhere_else(tmp_path: Path) -> None:
    """The script's own PATH stands before a program that differs from run to run, which is asked for its value."""
    from trainer.recording.record import JobCommand, isolation_here, record

    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "date"
    program.write_text(f"#!/bin/bash\ntouch {tmp_path}/escaped\necho 2026\n")
    program.chmod(0o755)
    (tmp_path / "run.sh").write_text(
        "D=$(env PATH=$PWD/bin:$PATH date)\nE=$(PATH=$PWD/bin:$PATH date +%s)\nF=$(date +%s)\n"
        "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --save $D --load $E --seed $F\n"
    )
    asked = JobCommand(argv=("bash", "run.sh"), cwd=str(tmp_path))
    found = record(asked, isolation_here())
    assert not (tmp_path / "escaped").exists()
    assert len(found.first["trains"]) == 1
    assert any(words == "$(date +%s)" for *_, words in found.pairs)


def test_the_devices_of_the_machine_keep_their_modes(tmp_path: Path) -> None:
    from trainer.recording.record import FIRST, JobCommand, _run, isolation_here

    devices = [Path("/dev", name) for name in DEVICES]
    before = [path.stat().st_mode for path in devices]
    (tmp_path / "run.sh").write_text(
        "chmod 600 /dev/null /dev/zero\nchown 1:1 /dev/full\necho x >/dev/null && echo written\n"
    )
    found = _run(JobCommand(argv=("bash", "run.sh"), cwd=str(tmp_path)), FIRST, isolation_here())
    assert [path.stat().st_mode for path in devices] == before
    assert found["stdout"].strip() == "written"


def test_modules_of_a_repository_do_not_run_in_our_interpreters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.interpreter import module_command, with_packages
    from trainer.recording.record import FIRST, JobCommand, _run, isolation_here

    for name in ("json.py", "trainer.py", "signal.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert _run(JobCommand(argv=("true",), cwd=str(tmp_path)), FIRST, isolation_here())["code"] == 0
    asked = module_command("trainer.interpreter")
    done = subprocess.run(asked, env=with_packages(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_recorder_that_does_not_start_is_not_called_a_system_without_isolation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trainer.recording import record

    monkeypatch.setattr(record.sys, "executable", "/bin/false")
    with pytest.raises(record.RecorderError, match="the recorder of launch scripts failed"):
        record._run(record.JobCommand(argv=("true",), cwd="/"), record.FIRST, Isolation.NAMESPACES)


def test_without_namespaces_only_landlock_is_left(prey: tuple[int, Prey]) -> None:
    """Runs in a user namespace without privileges that may make no other namespace; Landlock stays if it was there."""
    user, prey_of = prey
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("no unshare or setpriv to take the namespaces away with")
    deny = ("unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"')
    bare = (*deny, "sh", "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    if user != 0 or PYTHON is None:
        pytest.skip("only root, with a Python that others may run too, takes them away")
    found = tried(0, "namespaces", Path("/dev/null"), prey_of.home, *bare)
    assert "impossible" in found
    found = tried(0, "any", Path("/dev/null"), prey_of.home, *bare)
    assert found["isolation"] in (Isolation.LANDLOCK, None)


@pytest.mark.parametrize(
    "line", ["while :; do :; done", "f() { f | f & }; f", "sleep() { :; }; until false; do sleep 1; done"]
)
def test_a_script_that_does_not_end_is_ended_with_all_it_started(line: str, tmp_path: Path) -> None:
    from trainer.recording.record import FIRST, JobCommand, _run, isolation_here

    (tmp_path / "endless.sh").write_text(f"python pretrain_gpt.py --num-layers 2\n{line}\n")
    asked = JobCommand(argv=("bash", str(tmp_path / "endless.sh")), cwd=str(tmp_path), limit_s=1)
    found = _run(asked, FIRST, isolation_here())
    assert (
        "did not end within 1 s" in str(found["why"]) or "processes at once" in str(found["why"]) or found["code"] == 0
    )
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if os.fsencode(tmp_path) in _bytes(path)]


def test_a_program_that_is_not_there_and_one_behind_every_shell_word_are_both_seen(tmp_path: Path) -> None:
    from trainer.recording.record import FIRST, JobCommand, _run, isolation_here

    forms = ["/opt/none/bin/python", "exec /opt/none/bin/python", "env A=1 /opt/none/bin/python",
             "command nohup python3",
             "exec torchrun", "PATH=/none; torchrun", "unset BASH_ENV; bash -c 'exec /opt/none/bin/torchrun \"$@\"' x",
             "unset PATH; /none/torchrun", "xargs -a /dev/null torchrun", "timeout 5 torchrun", "setsid nice /x/python",
             "hash -r; torchrun", "unset -f command_not_found_handle; /x/torchrun"]  # fmt: skip
    lines = [f"({form} pretrain_gpt.py --seed {at} --num-layers 2 --hidden-size 8)" for at, form in enumerate(forms)]
    (tmp_path / "forms.sh").write_text("\n".join(lines))
    found = _run(
        JobCommand(argv=("bash", str(tmp_path / "forms.sh")), cwd="/", limit_s=int(HANG_S)), FIRST, isolation_here()
    )
    seen = {each["words"][each["words"].index("--seed") + 1] for each in found["trains"]}
    assert seen == {str(at) for at in range(len(forms))}, found["stderr"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _places() -> dict[str, list[str]]:
    """Returns the names in folders that hostile lines write to; of /tmp, which other tests use too, only those that
    contain hostile."""
    found = {}
    for place in ("/", "/etc", "/var/tmp", "/dev/shm", "/dev/mqueue"):
        if os.path.isdir(place):
            found[place] = sorted(os.listdir(place))
    found["/tmp"] = sorted(name for name in os.listdir("/tmp") if "hostile" in name)
    return found


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
