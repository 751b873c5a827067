"""Splits launchers (torchrun, srun, mpirun and others) off the front of a command.

Cluster sizes in their options are read; the words themselves are returned as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

# Flags of each launcher that stand alone; every other one takes a value. Sources: `torchrun --help` (torch 2.13),
# srun(1) of Slurm 24.05, mpirun(1) of Open MPI 5, `accelerate launch --help` 1.10, singularity exec(1), numactl(8),
# nsys(1) 2025.3. A name is that of the program, or `python -m` of the module.
ALONE: dict[str, frozenset[str]] = {
    name: frozenset(flags.split())
    for name, flags in {
        "torchrun": "--standalone -m --module --no-python --run-path --use-env",
        "srun": "-l --label -u --unbuffered -K --kill-on-bad-exit --exclusive --overlap --pty -v --verbose -Q --quiet "
        "-X --disable-status -s -k --no-kill --no-container-mount-home --container-mount-home --container-writable "
        "--container-remap-root --no-container-remap-root --no-container-entrypoint --mpi-combine --wait-all --exact "
        "-O --overcommit -E --preserve-env -H --hold -Z --no-allocate --contiguous --multi-prog --spread-job "
        "--use-min-nodes --test-only --container-readonly",
        "mpirun": "--allow-run-as-root --oversubscribe --report-bindings --tag-output -q -v --bind-to-none "
        "--timestamp-output --display-map --display-allocation --display-topo --use-hwthread-cpus --nooversubscribe "
        "--quiet --verbose --merge-stderr-to-stdout --pernode --nolocal",
        "accelerate": "--multi_gpu --multi-gpu --cpu --use_fsdp --use_deepspeed --use_megatron_lm -m --module "
        "--no_python --same_network --debug -q --quiet",
        "deepspeed": "--no_ssh --no_local_rank --no_python --module --force_multi",
        "singularity": "--nv --nvccli --rocm --cleanenv -e -c --contain --containall -C --writable --writable-tmpfs "
        "--no-home -u --userns --fakeroot -f --compat --ipc --pid",
        "docker": "--rm -it -i -t --privileged --init -d --detach",
        "nsys": "--stats",
        "numactl": "--localalloc -l --all -a",
        "env": "-i -",
        "uv": "--no-sync --isolated --frozen --locked --active",
        "conda": "--no-capture-output --live-stream",
        "time": "-p -v --verbose",
        "timeout": "--foreground -v --verbose --preserve-status",
    }.items()
}
SAME = {
    "apptainer": "singularity",
    "mpiexec": "mpirun",
    "prun": "mpirun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "podman": "docker",
}
PLAIN = frozenset(
    {"nohup", "exec", "stdbuf", "ionice", "nice", "unbuffer", "setsid", "ncu", "enroot", "command", "sudo"}
)
VERBS = {
    "accelerate": ("launch",),
    "singularity": ("exec", "run"),
    "docker": ("run", "exec"),
    "nsys": ("profile",),
    "uv": ("run",),
    "conda": ("run",),
}
LIVE = frozenset({"--no-capture-output", "--live-stream"})  # options of conda run
OF_RANKS = frozenset({"uv", "conda"})  # launchers whose words begin the command of every rank: they select its Python
# launchers with one more word before the command, an image or a time
TAKES_ONE = frozenset({"singularity", "docker", "timeout"})
TWO_VALUES = frozenset({"mca"})
GLUES = frozenset({"srun"})  # launchers whose options with one dash are one letter: -pgpu, -N2
# options whose values are names that people choose, which may be that of a program
NAMES = frozenset({"J", "job_name", "comment", "name", "o", "output", "e", "error", "rdzv_id", "run_id", "log_dir"})
SETS_BEFORE = frozenset({"env", "time"})  # launchers that accept NAME=VALUE before the command
PYTHON_ALONE = re.compile(r"-[uOBIsSEqvbP]+$")
PYTHON_VALUED = frozenset({"-W", "-X"})
# options that set variables, and the separator between several of them; sources as above
SETTING: dict[str, tuple[tuple[str, ...], str | None]] = {
    "srun": (("--export",), r","),
    "mpirun": (("-x",), None),
    "singularity": (("--env",), r",(?=[A-Za-z_]\w*=)"),
    "docker": (("-e", "--env"), None),
}
TORCHRUNS = "PET_"  # prefix of the variable of every option (torch/distributed/run.py 2.13)
PYTHON = re.compile(r"(.*/)?(python[\d.]*|pypy3?)$")


@dataclass(frozen=True, kw_only=True)
class Peeled:
    """One launcher's words, as written."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Cluster sizes from launchers' options; None: not given, or not a number."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    tasks: int | None = None
    gpu: str | None = None  # as written: h100

    def over(self, other: Sizes) -> Sizes:
        """Returns these sizes, with the other's where these are None."""
        mine = {each.name: getattr(self, each.name) for each in fields(self)}
        return Sizes(**{name: getattr(other, name) if value is None else value for name, value in mine.items()})


@dataclass(frozen=True, kw_only=True)
class Start:
    """A command split into what one rank runs and what starts it."""

    command: tuple[int, ...]  # positions of its words in the given command
    python: str | None  # the Python with which torchrun starts scripts, to be put before the command
    peeled: tuple[Peeled, ...]
    within: tuple[str, ...] = ()  # words before the Python: uv run, conda run
    env: tuple[tuple[str, str], ...] = ()


def peel(words: Sequence[str]) -> Start:
    """Splits a command into what one rank runs and the launchers before it, the outermost first."""
    peeled: list[Peeled] = []
    env: list[tuple[str, str]] = []
    at, python = 0, None
    while at < len(words):
        name, begin = _launcher(words, at)
        if name is None:
            if "=" in words[at] and re.match(r"[A-Za-z_]\w*=", words[at]) and peeled and peeled[-1].name in SETS_BEFORE:
                key, _, value = words[at].partition("=")
                env.append((key, value))
                at += 1
                continue
            break
        end, module, own_python = _end(name, words, begin)
        peeled.append(Peeled(name=name, words=tuple(words[at:end])))
        env += _environment(name, words[begin:end])
        starts_python = name in ("torchrun", "accelerate", "deepspeed") and own_python
        at, python = end, "python -m" if starts_python and module else "python" if starts_python else None
        if python:
            break
    within = tuple(word for each in peeled if each.name in OF_RANKS for word in _unbuffered(each.words))
    starts = tuple(each for each in peeled if each.name not in OF_RANKS)
    return Start(command=tuple(range(at, len(words))), python=python, peeled=starts, env=tuple(env), within=within)


def _unbuffered(words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words with unbuffered output for `conda run`, which otherwise prints its program's output only at the
    end, so that a burst's progress would not be seen."""
    if words[0] != "conda" or LIVE.intersection(words):
        return words
    return (*words[:2], "--no-capture-output", *words[2:])


def _launcher(words: Sequence[str], at: int) -> tuple[str | None, int]:
    """Returns the launcher whose words start here and the position of its options; None if a plain command starts
    here."""
    word = words[at].rpartition("/")[2]
    if PYTHON.fullmatch(words[at]):
        options = at + 1
        while options < len(words) and (words[options] in PYTHON_VALUED or PYTHON_ALONE.match(words[options])):
            options += 1 + (words[options] in PYTHON_VALUED)
        if options + 1 < len(words) and words[options] == "-m" and words[options + 1] in SAME:
            return SAME[words[options + 1]], options + 2
        return None, at
    name = SAME.get(word, word)
    if name in ALONE:
        verb = at + 1 < len(words) and words[at + 1] in VERBS.get(name, ())
        return name, at + 1 + verb
    return (word, at + 1) if word in PLAIN else (None, at)


def _end(name: str, words: Sequence[str], at: int) -> tuple[int, bool, bool]:
    """Returns the position after the launcher's own words, whether it starts a module, and whether it starts Python at
    all."""
    module, python = False, True
    while at < len(words) and words[at].startswith("-"):
        word, flag = words[at], _plain(words[at].partition("=")[0])
        module = module or flag in ("m", "module")
        python = python and flag != "no_python"
        at += 1
        if word == "--":
            break
        if stands_alone(name, word) or (flag not in NAMES and at < len(words) and _is_program(words[at])):
            continue
        at += 2 if flag in TWO_VALUES else 1
    return min(len(words), at + (name in TAKES_ONE)), module, python


def _plain(flag: str) -> str:
    """Returns a flag's canonical name: --no-python, --no_python and -no_python are the same."""
    return flag.lstrip("-").replace("-", "_")


def stands_alone(name: str, word: str) -> bool:
    """Returns whether no value follows the word: it is a switch, several one-letter switches, or contains its value."""
    flag = word.partition("=")[0]
    if "=" in word or _plain(flag) in _PLAIN_ALONE.get(name, ()) or (name in PLAIN and flag != "-n"):
        return True
    if flag.startswith("--") or len(flag) < 3:
        return False
    letters = [letter in _PLAIN_ALONE.get(name, ()) for letter in flag[1:]]
    if all(letters[:-1]):
        return letters[-1]
    return name in GLUES or re.match(r"-[A-Za-z]\d", flag) is not None


def _is_program(word: str) -> bool:
    """Returns whether the word is Python, a Python script or a launcher, and thus not a value of an unknown option."""
    name = word.rpartition("/")[2]
    known = name in ALONE or name in SAME or name in PLAIN
    return known or PYTHON.fullmatch(word) is not None or word.endswith(".py")


_PLAIN_ALONE = {name: frozenset(map(_plain, flags)) for name, flags in ALONE.items()}


def _environment(name: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields variables that a launcher's own options set: mpirun -x NAME=VALUE, srun --export=ALL,NAME=VALUE."""
    flags, comma = SETTING.get(name, ((), None))
    for flag, value in options(words):
        if flag in flags:
            for pair in re.split(comma, value) if comma else [value]:
                if re.match(r"[A-Za-z_]\w*=", pair):
                    key, _, text = pair.partition("=")
                    yield key, text


_GRES = re.compile(r"(?:gres/)?gpu(?::(?P<gpu>[a-zA-Z]\w*))?(?::(?P<count>\d+))?")
_PER_NODE = re.compile(r"(?:(?P<gpu>[a-zA-Z]\w*):)?(?P<count>\d+)?")


def sizes(peeled: Iterable[Peeled]) -> Sizes:
    """Returns the sizes in the launchers' options; inner launchers take precedence."""
    found = Sizes()
    for each in reversed(list(peeled)):
        reader = _READERS.get(each.name)
        found = found.over(reader(each.words)) if reader else found
    return found


def slurm_environment(words: Sequence[str]) -> dict[str, str]:
    """Returns the variables that an #SBATCH line sets."""
    return dict(_environment("srun", words))


def slurm_sizes(words: Sequence[str]) -> Sizes:
    """Returns the sizes in options of srun, sbatch or an #SBATCH line."""
    given = dict(options(words, "srun"))
    tasks, per_node = _number(given, "--ntasks", "-n"), _number(given, "--ntasks-per-node")
    nodes = _number(given, "--nodes", "-N")
    gres = _GRES.match(given.get("--gres", ""))
    gpus = _PER_NODE.fullmatch(given.get("--gpus-per-node", ""))
    matches = [match for match in (gpus, gres) if match]
    count = next((int(match["count"]) for match in matches if match["count"]), None)
    gpu = next((match["gpu"] for match in matches if match["gpu"]), None)
    if nodes is None and tasks and per_node:
        nodes = tasks // per_node
    if per_node is None and tasks and nodes:
        per_node = tasks // nodes
    return Sizes(
        nodes=nodes,
        gpus_per_node=count,
        tasks_per_node=per_node,
        tasks=tasks,
        gpu=gpu or given.get("--constraint", given.get("-C")),
    )


def _torchrun(words: Sequence[str]) -> Sizes:
    given = {flag.replace("_", "-"): value for flag, value in options(words)}
    nodes = 1 if "--standalone" in words and "--nnodes" not in given else _number(given, "--nnodes")
    return Sizes(nodes=nodes, gpus_per_node=_number(given, "--nproc-per-node", "--nproc"))


def torchrun_environment(variables: Mapping[str, str]) -> Sizes:
    """Returns the sizes in torchrun's own variables, which apply where an option is not given."""
    return Sizes(
        nodes=_number(dict(variables), f"{TORCHRUNS}NNODES"),
        gpus_per_node=_number(dict(variables), f"{TORCHRUNS}NPROC_PER_NODE"),
    )


def _accelerate(words: Sequence[str]) -> Sizes:
    given = {flag.replace("_", "-"): value for flag, value in options(words)}
    nodes, ranks = _number(given, "--num-machines"), _number(given, "--num-processes")
    return Sizes(nodes=nodes, gpus_per_node=ranks // (nodes or 1) if ranks else None, tasks=ranks)


def _mpirun(words: Sequence[str]) -> Sizes:
    given = dict(options(words))
    per_node = _number(given, "--npernode", "-npernode", "-ppn")
    tasks = _number(given, "-np", "-n", "--np")
    return Sizes(tasks=tasks, gpus_per_node=per_node, nodes=tasks // per_node if tasks and per_node else None)


def _deepspeed(words: Sequence[str]) -> Sizes:
    given = dict(options(words))
    return Sizes(nodes=_number(given, "--num_nodes"), gpus_per_node=_number(given, "--num_gpus"))


_READERS = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "srun": slurm_sizes,
    "mpirun": _mpirun,
    "deepspeed": _deepspeed,
}


def options(words: Sequence[str], name: str = "") -> Iterator[tuple[str, str]]:
    """Yields flags with their values, in any form: --nodes=2, --nodes 2, -N2, -N 2; for a launcher with known switches
    also -lN 2."""
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        if not word.startswith("-"):
            continue
        while re.match(r"-[A-Za-z]{2}", word) and f"-{word[1]}" in ALONE.get(name, ()):
            word = flag = f"-{word[2:]}"
        if glued := re.fullmatch(r"(-[A-Za-z])(\d+)", word):
            yield glued[1], glued[2]
        else:
            yield flag, value if equals else following


def _number(given: dict[str, str], *flags: str) -> int | None:
    return next((int(given[flag]) for flag in flags if re.fullmatch(r"\d+", given.get(flag, ""))), None)
