"""Records a command twice, as two different jobs: what is equal is fixed, what differs depends on the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from trainer.errors import ToolError
from trainer.recording.jail import Isolation
from trainer.recording.programs import Values, job_environment

LIMIT_S = 60  # seconds for one run of the user's script
MAX_TESTS = 12  # most files for which the opposite answer is tried, to find the arguments that depend on them
PATH = "/usr/local/bin:/usr/bin:/bin"
ROOT = Path(__file__).parent.parent.parent
FIRST = Values(time=1764590405, job="4242001", host="cn-a", pid=4711, seed=11353)
SECOND = Values(time=1767541639, job="7318852", host="gx-b", pid=9203, seed=22719, task=5)


@dataclass(frozen=True, kw_only=True)
class JobCommand:
    """A command and the job that it runs in. `headers`: words of the job's #SBATCH lines; () outside a job. `present`,
    `absent`: paths that the command finds to exist, or not to, whatever the disk has."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    in_job: bool = False
    nodes: int = 1
    gpus_per_node: int = 8
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    limit_s: int = LIMIT_S
    fixed: Mapping[str, str] = field(default_factory=dict)  # variables that keep this value if the script assigns one


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Both runs and, for each of at most MAX_TESTS files that the script tests, a run with the opposite answer."""

    isolation: Isolation
    first: dict[str, Any]
    second: dict[str, Any]
    otherwise: Mapping[str, dict[str, Any]]
    # (value in the first run, value in the second, the expression that gives them)
    pairs: tuple[tuple[str, str, str], ...]


class NotIsolatedError(RuntimeError):
    """Raised if the system allows no isolation; nothing was run."""


class RecorderError(ToolError):
    """The recorder itself did not start, which says nothing of the isolation that this system allows."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the recorder of launch scripts failed: {why}", hint="`moe-autotune doctor`; nothing was run")


@cache
def isolation_here(*, trust: bool = False) -> Isolation:
    """Returns the first isolation that this system allows, tried with a command that does nothing.

    Raises NotIsolatedError if there is none; without `trust`, Isolation.NONE is not tried.
    """
    whys = []
    for isolation in Isolation:
        if isolation == Isolation.NONE and not trust:
            break
        tried = _run(JobCommand(argv=("true",), cwd="/"), FIRST, isolation)
        if tried.get("code") == 0:
            return isolation
        whys.append(f"{isolation}: {tried.get('impossible') or tried['stderr'].strip()}")
    raise NotIsolatedError("; ".join(whys))


def record(asked: JobCommand, isolation: Isolation) -> Recording:
    """Runs the command twice, and again with the opposite answer for each of at most MAX_TESTS files that it tests."""
    runs = [replace(values, nodes=asked.nodes, gpus_per_node=asked.gpus_per_node) for values in (FIRST, SECOND)]
    first, second = _runs([(asked, values) for values in runs], isolation)
    if [len(each["words"]) for each in first["trains"]] != [len(each["words"]) for each in second["trains"]]:
        second = _run(asked, replace(runs[1], task=0), isolation)  # rank 0 may have arguments of its own
    decided = {path.rstrip("/") for path in (*asked.present, *asked.absent)}
    tested = [path for path in first["tests"] if path not in decided][:MAX_TESTS]
    folders = {path for path, line in first["tests"].items() if line.endswith("/d")}
    flipped = _runs([(_flipped(asked, path, path in folders), runs[0]) for path in tested], isolation)
    otherwise = dict(zip(tested, flipped, strict=True))
    return Recording(isolation=isolation, first=first, second=second, otherwise=otherwise,
                     pairs=tuple(_pairs(asked, runs, first, second, isolation)))  # fmt: skip


def _flipped(asked: JobCommand, path: str, folder: bool) -> JobCommand:
    if os.path.exists(path):
        return replace(asked, absent=(*asked.absent, path))
    return replace(asked, present=(*asked.present, f"{path}/" if folder else path))


def _fixed(variables: Mapping[str, str]) -> dict[str, str]:
    if not variables:
        return {}
    held = {f"MOE_RECORD_SET_{name}": value for name, value in variables.items()}
    return {**variables, **held, "MOE_RECORD_SET": " ".join(variables)}


def _run(asked: JobCommand, values: Values, isolation: Isolation) -> dict[str, Any]:
    return _runs([(asked, values)], isolation)[0]


def _runs(asked: Sequence[tuple[JobCommand, Values]], isolation: Isolation) -> list[dict[str, Any]]:
    """Makes recordings in a separate process, whose imports take longer than a recording; {"impossible": reason} for
    each that failed. Deletes their scratch folders."""
    if not asked:
        return []
    limit_s = 60 + sum(command.limit_s for command, _ in asked)
    with tempfile.TemporaryDirectory(prefix="moe-autotune-", ignore_cleanup_errors=True) as scratch:
        requests = [_request(*each, isolation, f"{scratch}/{at}") for at, each in enumerate(asked)]
        with subprocess.Popen(
            [sys.executable, "-P", "-S", "-m", "trainer.recording.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT)},
            process_group=0,
        ) as worker:
            try:
                said, errors = worker.communicate(json.dumps(requests), timeout=limit_s)
            except BaseException as error:
                os.killpg(worker.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return [{"impossible": f"it could not be ended within {limit_s} s"}] * len(asked)
    if worker.returncode:
        raise RecorderError(errors.strip().rpartition("\n")[2] or f"it ended with {worker.returncode}")
    return [{**answer, "env": request["env"]} for answer, request in zip(json.loads(said), requests, strict=True)]


def _request(asked: JobCommand, values: Values, isolation: Isolation, scratch: str) -> dict[str, Any]:
    """Returns the worker's request for a recording; makes its scratch folder."""
    os.mkdir(scratch)
    job = job_environment(values, asked.headers, asked.cwd)
    known = {"PATH": PATH, "HOME": os.path.expanduser("~"), "USER": "user", "HOSTNAME": values.hosts[0], "TERM": "dumb"}
    own = {
        name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH") if name in os.environ
    }
    return {
        "argv": asked.argv, "cwd": asked.cwd, "values": asdict(values), "isolation": isolation, "scratch": scratch,
        "env": {**known, **own, **(job if asked.in_job else {}), **asked.env, **_fixed(asked.fixed)},
        "limit_s": asked.limit_s, "present": asked.present, "absent": asked.absent,
        "bash_env": Path(__file__).with_name("bash_env.sh").read_text(),
        "job": "".join(f"export {name}='{value}'\n" for name, value in job.items()),
    }  # fmt: skip


def _pairs(asked: JobCommand, runs: Sequence[Values], first: dict[str, Any], second: dict[str, Any],
           isolation: Isolation) -> Any:  # fmt: skip
    """Returns every value that depends on the job, longest first, with the expression that gives it."""
    one, two = runs
    found = [
        (a[1], b[1], f"$({a[0]})") for a, b in zip(first["varying"], second["varying"], strict=False) if a[0] == b[0]
    ]
    dates = {a: b for a, b, words in found if words.startswith("$(date") and a.startswith("[")}
    found = [each for each in found if each[0] not in dates]
    commands = {(a[1], b[1], f"$({a[0]})") for a, b in zip(first["varying"], second["varying"], strict=False)
                if a[0] == b[0] and a[1].startswith("[")}  # fmt: skip
    said = _outputs({text for a, b, _ in commands for text in (a, b)}, asked.cwd, isolation)
    found += [(said[a], said[b], words) for a, b, words in commands]
    hosts = [(a, b, f'$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n {at}p)')
             for at, (a, b) in enumerate(zip(one.hosts, two.hosts, strict=True), start=1)]  # fmt: skip
    submitted = any(each["name"] == "sbatch" for train in first["trains"] for each in train["launched"])
    if asked.in_job or submitted:
        names = ("SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_ARRAY_TASK_ID")
        jobs = [job_environment(values, asked.headers, asked.cwd) for values in runs]
        found += [(jobs[0].get(name, ""), jobs[1].get(name, ""), f"${name}") for name in names] + hosts
    found += [(one.hosts[0], two.hosts[0], "$(hostname)"), (str(one.pid), str(two.pid), "$$")]
    found += [(a, b, "$RANDOM") for a, b in zip(*(_random(each.seed) for each in runs), strict=True)]
    found += [(str(one.time), str(two.time), "$EPOCHSECONDS")]
    return sorted((each for each in found if each[0] and each[1]), key=lambda each: -len(each[0]))


@cache
def _random(seed: int) -> tuple[str, ...]:
    """Returns the first values of bash's RANDOM after it was set to `seed`."""
    own = ["bash", "-c", f"RANDOM={seed}; echo $RANDOM $RANDOM $RANDOM $RANDOM"]
    return tuple(subprocess.run(own, capture_output=True, text=True, check=False).stdout.split())


def _outputs(commands: Collection[str], cwd: str, isolation: Isolation) -> dict[str, str]:
    """Returns what each command, JSON words that a recording saw, prints. They are a stranger's words, with variables
    of the script's own (PATH) in front of them: they run isolated, as the script did."""
    named = sorted(commands)
    ran = _runs([(JobCommand(argv=tuple(json.loads(words)), cwd=cwd), FIRST) for words in named], isolation)
    return {words: found.get("stdout", "").rstrip("\n") for words, found in zip(named, ran, strict=True)}
