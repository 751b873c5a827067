"""Decides what happens to a program that a launch script starts: it runs, is replaced by what it would start, is
recorded as training, or is answered without running. Only looks at files, changes nothing."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.launch_scripts.launchers import (
    PYTHON,
    PYTHON_VALUED,
    Peeled,
    Start,
    options,
    peel,
    slurm_environment,
    slurm_sizes,
)

HERE = Path(__file__).parent


def _rows(path: Path) -> list[list[str]]:
    """Returns (first column, the rest) of each line.

    Does not use `trainer.recipe`, whose import takes longer than a recording needs.
    """
    return [line.split(",", 1) for line in path.read_text().splitlines()[1:]]


DOES = {does: frozenset(programs.split()) for does, programs in _rows(HERE / "programs.csv")}
FLAGS = {row[0] for path in (HERE.parent / "frameworks").glob("*/arguments.csv") for row in _rows(path)}
TRAINS = re.compile(r"(.*/)?(pretrain\w*|train\w*|finetune\w*|run_recipe|run_pretrain\w*)\.py$")
STARTS_RANKS = frozenset({"torchrun", "deepspeed", "accelerate", "mpirun", "srun"})
MIN_FLAGS = 2  # least number of a framework's flags for a program to count as a training program
MAX_PASSED = 12
GIT_LOOKS = frozenset({"rev-parse", "log", "describe", "branch", "remote", "status", "config", "show", "ls-files"})
# option letters with a value, before the host
_SSH_VALUED = frozenset("BbcDEeFIiJLlmOopQRSWwxftugX")


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values that only the job has, in one recording. Two recordings differ in all but nodes, GPUs per node and GPU."""

    time: int
    job: str
    host: str
    pid: int
    seed: int
    nodes: int = 1
    gpus_per_node: int = 8
    gpu: str = "NVIDIA H100 80GB HBM3"
    task: int = 0  # number of the task on its node, for programs that srun starts

    @property
    def hosts(self) -> list[str]:
        return [f"{self.host}{number + 1}" for number in range(self.nodes)]

    @property
    def address(self) -> str:
        return f"10.{self.pid % 200}.0.{self.seed % 200 + 1}"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A program before it starts: its arguments, exported variables and folder.

    `layer`: its changes of files are discarded; `launched`: the launchers that started its ancestors.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    layer: bool
    launched: tuple[Peeled, ...] = ()
    root: bool = False  # true for the program that the user named, false for programs that it starts


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """The command that replaces a program of the launch script while the script is recorded.

    `run`: arguments to execute instead; None: print `says` and exit with 0. `trains`: the command, if it trains.
    `varies`: the command in the script whose output this gives, if its own differs from run to run.
    """

    run: tuple[str, ...] | None = None
    says: str = ""
    trains: tuple[str, ...] | None = None
    launched: tuple[Peeled, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    varies: str | None = None


def becomes(process: Process, values: Values) -> Replacement:
    """Decides what the program behind all launchers in front of it becomes."""
    env: list[tuple[str, str]] = []
    words, launched = process.words, process.launched
    for _ in range(MAX_PASSED):
        name = os.path.basename(words[0])
        if name in DOES["ssh"]:
            inner, before = _behind_ssh(words)
            launched = (*launched, Peeled(name="ssh", words=before))
            return Replacement(run=("bash", "-c", inner) if inner else None, launched=launched, env=tuple(env))
        if name == "tmux":
            typed = [word for word in words[2:] if word not in ("C-m", "Enter", "KPEnter") and not word.startswith("-")]
            return Replacement(run=("bash", "-c", typed[-1]) if typed else None, launched=launched, env=tuple(env))
        if name == "sbatch":
            return _sbatch(words, launched, values)
        start = peel(words)
        launched, env = (*launched, *start.peeled), [*env, *start.env]
        if values.task and any(each.name == "srun" for each in start.peeled):
            env += [("SLURM_PROCID", str(values.task)), ("SLURM_LOCALID", str(values.task))]
        behind = tuple(words[at] for at in start.command)
        if start.python or start.within:
            behind = (*start.within, *_interpreter(start), *behind)
            return Replacement(trains=behind, launched=launched, env=tuple(env))
        if not behind:
            return Replacement(run=words if name == "env" else None, launched=process.launched)
        if len(behind) == len(words) and name in DOES["passes"]:
            at = next((at for at in range(1, len(words)) if _starts(words[at])), None)
            if at is None:
                return Replacement()
            launched, behind = (*launched, Peeled(name=name, words=words[:at])), words[at:]
        if len(behind) == len(words):
            break
        words = behind
    reached = Process(words=words, env={**process.env, **dict(env)}, cwd=process.cwd, layer=process.layer,
                      launched=launched, root=process.root and words == process.words)  # fmt: skip
    found = _reached(reached, values)
    run = ("env", *(f"{name}={value}" for name, value in env), *found.run) if env and found.run else found.run
    return Replacement(run=run, says=found.says, trains=found.trains, launched=launched, env=tuple(env),
                   varies=found.varies)  # fmt: skip


def _interpreter(start: Start) -> tuple[str, ...]:
    """Returns the Python that a launcher runs its program with: the one that runs the launcher, if it is named."""
    words = (start.python or "").split()
    own = start.peeled[-1].words[0] if start.peeled else ""
    return (own, *words[1:]) if words and PYTHON.fullmatch(own) else tuple(words)


def _starts(word: str) -> bool:
    name = os.path.basename(word)
    return name in DOES["shell"] or PYTHON.fullmatch(word) is not None or word.endswith((".py", ".sh")) or (
        len(peel((word,)).peeled) == 1
    )  # fmt: skip


def _behind_ssh(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the command for the remote shell, and the words before it."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 + (len(words[at]) == 2 and words[at][1] in _SSH_VALUED)
    at += os.path.basename(words[0]) in ("ssh", "rsh")
    return " ".join(words[at:]), tuple(words[:at])


SUBMITTED = re.compile(r"/job\.\d+\.stdin$")  # file of a script that was passed to sbatch on standard input
_IN_A_FILE = "job=${MOE_RECORD_JOB:-/tmp/job}.$$.stdin; cat >$job"


def _sbatch(words: tuple[str, ...], launched: tuple[Peeled, ...], values: Values) -> Replacement:
    """Decides on sbatch: the job's script runs in the job's environment, and the output is sbatch's."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 + ("=" not in words[at] and len(words[at]) == 2 and words[at][1] in "ACDJLNacdeinopqtwx")
    own = words[:at]
    wrapped = next((word.partition("=")[2] for word in own if word.startswith("--wrap=")), None)
    if wrapped is None and not words[at:]:  # the script is on standard input: first written to a file
        return Replacement(run=("bash", "-c", f"{_IN_A_FILE}; exec {shlex.join(own)} $job"), launched=launched)
    runs = f"bash -c {shlex.quote(wrapped)}" if wrapped else 'bash "$@"'
    says = values.job if "--parsable" in own else f"Submitted batch job {values.job}"
    text = f'[ -z "$MOE_RECORD_JOB" ] || . "$MOE_RECORD_JOB"; {runs} >/dev/null 2>&1; echo {says}'
    called = (*own, *words[at : at + 1])
    return Replacement(
        run=("bash", "-c", text, "sbatch", *words[at:]), launched=(*launched, Peeled(name="sbatch", words=called))
    )


def _reached(process: Process, values: Values) -> Replacement:
    """Decides on a program whose arguments start no other program."""
    words, name = process.words, os.path.basename(process.words[0])
    if name in DOES["shell"]:
        return Replacement(run=("bash", *words[1:]))
    if PYTHON.fullmatch(words[0]) or words[0].endswith(".py"):
        return _python(words if PYTHON.fullmatch(words[0]) else ("python", *words), process, values)
    if name == "train.sh" and "--recipe" in words and not os.path.exists(os.path.join(process.cwd, words[0])):
        return Replacement(trains=words)
    if answer := _ANSWERS.get(name):
        return answer(words, values)
    if name == "tail" and any(re.match(r"-[^-]*[fF]|--follow", word) for word in words[1:]):
        return Replacement()  # a program that would never end is not run
    if name in DOES["real"] or (name in DOES["layer"] and process.layer) or process.root:
        return Replacement(run=words)
    if _is_shell_script(os.path.join(process.cwd, words[0])):
        return Replacement(run=("bash", *words))
    return Replacement(says=words[-1] + "\n" if name == "mktemp" else "")


def _is_shell_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return path.endswith(".sh") or (first.startswith(b"#!") and b"sh" in first and b"python" not in first)


def _python(words: tuple[str, ...], process: Process, values: Values) -> Replacement:
    """Decides on Python: a program that trains is recorded; code that only computes runs isolated."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-c", "-m", "-"):
        at += 1 + (words[at] in PYTHON_VALUED)
    if at >= len(words):
        return Replacement(run=("python3", *words[1:])) if len(words) > 1 and process.layer else Replacement()
    if words[at] == "-c":
        code = words[at + 1] if at + 1 < len(words) else ""
        if "device_count" in code:
            return Replacement(says=f"{values.gpus_per_node}\n")
        heavy = re.search(r"\b(torch|megatron|transformer_engine|flash_attn|deepspeed)\b", code)
        return Replacement() if heavy or not process.layer else Replacement(run=("python3", *words[1:]))
    if words[at] == "-":
        return Replacement(run=("python3", *words[1:])) if process.layer else Replacement()
    program = words[at + 1] if words[at] == "-m" and at + 1 < len(words) else words[at]
    if program in ("pip", "venv", "ensurepip"):
        return Replacement()
    launched = any(each.name in STARTS_RANKS for each in process.launched)
    flags = {word.partition("=")[0] for word in words[at:]} & FLAGS
    if launched or TRAINS.match(program) or len(flags) >= MIN_FLAGS or "--recipe" in words:
        return Replacement(trains=words)
    there = os.path.exists(os.path.join(process.cwd, program)) or words[at] == "-m"
    return Replacement(run=("python3", *words[1:])) if there and process.layer else Replacement(trains=words)


def _date(words: Sequence[str], values: Values) -> Replacement:
    if any(re.match(r"-[^-]*[dfrs]|--(date|file|reference|set)", word) for word in words[1:]):
        return (
            Replacement(run=tuple(words))
            if not any(word.startswith(("-s", "--set")) for word in words)
            else Replacement()
        )
    return Replacement(
        run=("date", "-d", f"@{values.time}.{values.seed % 10**9:09d}", *words[1:]), varies=shlex.join(words)
    )


def _scontrol(words: Sequence[str], values: Values) -> Replacement:
    return Replacement(
        says="".join(f"{host}\n" for host in values.hosts) if {"hostnames", "hostname"} & {*words} else ""
    )


def _smi(words: Sequence[str], values: Values) -> Replacement:
    if "-L" in words or "--list-gpus" in words:
        lines = (f"GPU {at}: {values.gpu} (UUID: GPU-{at})" for at in range(values.gpus_per_node))
    elif query := next((word for word in words if word.startswith("--query-gpu=")), None):
        fields = query.partition("=")[2].split(",")
        known = {
            "name": values.gpu,
            "gpu_name": values.gpu,
            "memory.total": "81559 MiB",
            "count": f"{values.gpus_per_node}",
        }
        lines = (", ".join(known.get(each, str(at)) for each in fields) for at in range(values.gpus_per_node))
    else:
        return Replacement()
    return Replacement(says="".join(f"{line}\n" for line in lines))


def _hostname(words: Sequence[str], values: Values) -> Replacement:
    address = any(re.match(r"-[iI]|--(all-)?ip-address", word) for word in words[1:])
    return Replacement(says=f"{values.address if address else values.hosts[0]}\n", varies=shlex.join(words))


def _shuf(words: Sequence[str], values: Values) -> Replacement:
    found = re.search(r"(\d+)-(\d+)", " ".join(words))
    if found is None or not any(word.startswith("-n") for word in words):
        return Replacement(run=tuple(words))
    low, high = int(found[1]), int(found[2])
    return Replacement(says=f"{low + values.seed % (high - low + 1)}\n", varies=shlex.join(words))


def _random_text(words: Sequence[str], values: Values) -> Replacement:
    digits = f"{values.seed * 0x9E3779B97F4A7C15 % 2**128:032x}"
    text = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
    return Replacement(says=f"{text if words[0].endswith('uuidgen') else digits}\n", varies=shlex.join(words))


def _git(words: Sequence[str], values: Values) -> Replacement:
    return Replacement(run=tuple(words)) if GIT_LOOKS & {*words[1:4]} else Replacement()


def _address(words: Sequence[str], values: Values) -> Replacement:
    return Replacement(says=f"{values.address} {words[-1]}\n")


_ANSWERS: dict[str, Callable[[Sequence[str], Values], Replacement]] = {
    "date": _date, "hostname": _hostname, "shuf": _shuf, "uuidgen": _random_text, "openssl": _random_text,
    "git": _git, "scontrol": _scontrol, "getent": _address, "host": _address, "nslookup": _address,
    "nvidia-smi": _smi, "rocm-smi": _smi, "amd-smi": _smi,
}  # fmt: skip


def headers_of(text: str) -> list[str]:
    """Returns the words of the #SBATCH lines, which precede the first command."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            found += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def job_environment(values: Values, headers: Sequence[str], folder: str) -> dict[str, str]:
    """Returns the variables that sbatch sets for the script of a job of this size."""
    names = ",".join(values.hosts)
    given = {
        "SLURM_JOB_ID": values.job, "SLURM_JOBID": values.job, "SLURM_NNODES": values.nodes,
        "SLURM_JOB_NUM_NODES": values.nodes, "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names,
        "SLURM_SUBMIT_DIR": folder, "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_NODEID": 0, "SLURM_GTIDS": 0,
        "SLURM_GPUS_ON_NODE": values.gpus_per_node, "SLURM_GPUS_PER_NODE": values.gpus_per_node,
        "SLURM_CLUSTER_NAME": "cluster", "SLURMD_NODENAME": values.hosts[0], "SLURM_CPUS_ON_NODE": 96,
        "SLURM_SUBMIT_HOST": "login", "SLURM_LAUNCH_NODE_IPADDR": values.address,
    }  # fmt: skip
    return {**{name: str(value) for name, value in given.items()}, **_asked(headers, values)}


_OF_HEADERS = {
    "SLURM_CPUS_PER_TASK": ("--cpus-per-task", "-c"),
    "SLURM_JOB_ACCOUNT": ("--account", "-A"),
    "SLURM_JOB_PARTITION": ("--partition", "-p"),
    "SLURM_ARRAY_TASK_ID": ("--array", "-a"),
}


def _asked(headers: Sequence[str], values: Values) -> dict[str, str]:
    """Returns the variables from #SBATCH lines: the job's name, tasks, cores, account, partition and array."""
    said, sizes = dict(options(headers, "srun")), slurm_sizes(headers)
    per_node = sizes.tasks_per_node or (sizes.tasks // values.nodes if sizes.tasks else 1)
    found = {"SLURM_JOB_NAME": said.get("--job-name", said.get("-J", "sbatch"))}
    found |= {"SLURM_NTASKS": str(sizes.tasks or per_node * values.nodes), "SLURM_NTASKS_PER_NODE": str(per_node)}
    found |= {"SLURM_NPROCS": found["SLURM_NTASKS"], "SLURM_TASKS_PER_NODE": f"{per_node}(x{values.nodes})"}
    for variable, flags in _OF_HEADERS.items():
        if value := next((said[flag] for flag in flags if flag in said), None):
            found[variable] = value
    if array := found.get("SLURM_ARRAY_TASK_ID"):
        begin, _, rest = re.split(r"[%:]", array)[0].partition(",")
        first, _, last = begin.partition("-")
        second = (
            rest.split(",")[0].partition("-")[0] if rest else str(int(first) + 1) if last not in ("", first) else first
        )
        found["SLURM_ARRAY_TASK_ID"] = second if values.task else first
        found["SLURM_ARRAY_JOB_ID"] = values.job
    return {**found, **slurm_environment(headers)}
