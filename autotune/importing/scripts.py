"""Runs a launch script with bash in isolation, to find the training command, its launchers, and the values that only
the job knows."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.importing.container import container_in
from autotune.importing.environment import is_set_by_launcher
from autotune.importing.found import ImportOptions, Started, check_given, short
from autotune.importing.hints import hint_for_script
from autotune.importing.notes import ARGUMENTS, line_of, notes_of, training_score
from trainer.engines.command.injected_folder import INJECTED
from trainer.errors import BadInputError, Problem, refused
from trainer.launch_scripts.launchers import (
    TORCHRUNS,
    Peeled,
    Sizes,
    sizes,
    slurm_environment,
    slurm_sizes,
    torchrun_environment,
)
from trainer.launch_scripts.login import login_line
from trainer.recording.expressions import CALCULATED, expression
from trainer.recording.jail import Isolation
from trainer.recording.programs import SUBMITTED, headers_of
from trainer.recording.record import JobCommand, NotIsolatedError, Recording, isolation_here, record
from trainer.secrets import is_secret, is_secret_flag

MAX_MISSING = 20  # runs of a script that ends too early
_MISSING = re.compile(r": line (\d+): \$?([A-Za-z_]\w*|\d+): (.*)$")
_OF_SHELLS = re.compile(r"(PWD|OLDPWD|SHLVL|_|HOSTNAME|MOE_\w+|MAKE\w*|MFLAGS|BASH_\w+|SLURM_\w+|SLURMD_\w+)$")
_PREPARES = re.compile(
    r"(module|ml) (?!list|avail|show)|(conda|mamba|micromamba|pyenv) (activate|deactivate|shell)"
    r"|spack (load|unload|env)|ulimit |eval |(cd|pushd|popd)\b|(source|\.) \S*/activate\b"
)


def started(text: str, options: ImportOptions) -> Started:
    """Returns the training job of a script. Raises BadInputError with the reason if it starts no training."""
    script = Path(options.file).resolve()
    headers = tuple(headers_of(text))
    command = JobCommand(
        argv=("bash", str(script), *_arguments(options)), cwd=options.cwd or str(script.parent), headers=headers,
        env=_environment(options), fixed=_fixed(options),
        in_job=bool(headers), present=options.exists, absent=options.absent, **_sizes_asked(options, headers),
    )  # fmt: skip
    found, command, problems = _reaching(command, options, text)
    check_given(options, text, *(each[3] for each in found.first["reported"]))
    return started_of(found, command, options, login=login_line(text), problems=problems)


def _sizes_asked(options: ImportOptions, headers: tuple[str, ...]) -> dict[str, int]:
    said = slurm_sizes(headers)
    known = {"nodes": options.nodes or said.nodes, "gpus_per_node": options.gpus_per_node or said.gpus_per_node}
    return {name: value for name, value in known.items() if value}


def _arguments(options: ImportOptions) -> tuple[str, ...]:
    """Returns the script's arguments, from --set '@=…' or --set 1=… --set 2=…."""
    if ARGUMENTS in options.given:
        return tuple(shlex.split(options.given[ARGUMENTS]))
    numbers = [int(name) for name in options.given if name.isdigit() and name != "0"]
    return tuple(options.given.get(str(number), "") for number in range(1, max(numbers, default=0) + 1))


def _environment(options: ImportOptions) -> dict[str, str]:
    """Returns the variables of the user's shell that the script sees."""
    return {name: value for name, value in os.environ.items() if name in options.env or "ALL" in options.env}


def _fixed(options: ImportOptions) -> dict[str, str]:
    return {name: value for name, value in options.given.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}


def _reaching(
    command: JobCommand, options: ImportOptions, text: str
) -> tuple[Recording, JobCommand, tuple[Problem, ...]]:
    """Returns a recording that reaches the training command (if none does, the last one), its command, and problems for
    the user.

    While the script ends too early, it is run again: with a placeholder for the variable that it lacks (reported as a
    problem), with the file that it lacks taken as present, or in the current folder.
    """
    missing: dict[str, Problem] = {}
    isolation = isolated(options)
    found = record(command, isolation)
    for _ in range(MAX_MISSING):
        if found.first["trains"] or found.first["why"]:
            sized = as_submitted(command, options, found.first["trains"])
            found = found if sized == command else record(sized, isolation)
            return found, sized, tuple(missing.values())
        if lacking := _lacking(found.first, text, {*missing, *command.fixed}):
            line, name, why = lacking
            command = _with_placeholder(command, name)
            if not is_secret(name):  # secrets are left out anyway
                missing[name] = Problem(
                    where=f"{options.file}:{line}", what=f"{name}: {why}", hint=f"--set {name}=VALUE"
                )
        elif path := next(
            (path for path, run in reversed(list(found.otherwise.items())) if _gets_further(run, found.first)), None
        ):
            folder = "/" if found.first["tests"][path].endswith("/d") else ""
            command = replace(command, present=(*command.present, path + folder))
        elif command.cwd != os.getcwd() and not options.cwd:
            command = replace(command, cwd=os.getcwd())
        else:
            break
        found = record(command, isolation)
    return found, command, tuple(missing.values())


def as_submitted(command: JobCommand, options: ImportOptions, trains: Sequence[Mapping[str, Any]]) -> JobCommand:
    """Returns the command with the size of the Slurm job that it submits, by the #SBATCH lines of that job."""
    headers = tuple(next((train["headers"] for train in trains if train["headers"]), ()))
    if command.in_job or not headers:
        return command
    sizes: dict[str, Any] = dict(_sizes_asked(options, headers))
    return replace(command, headers=headers, **sizes)


def _lacking(first: Mapping[str, Any], text: str, known: Container[str]) -> tuple[str, str, str] | None:
    """Returns line, name and reason of the variable without which the script ended: the one that bash names, or else
    the last empty one if the script failed; None if there is none."""
    lines = first["stderr"].strip().splitlines()
    if lines and (match := _MISSING.search(lines[-1])) and match[2] not in known:
        line, name, why = match.groups()
        demanded = f"${{{name}:?" in text or f"${{{name}?" in text
        if demanded or why in ("unbound variable", "parameter null or not set"):
            return line, name, why
    empty = [(line, name) for kind, _, line, name in first["reported"] if kind == "empty" and name not in (*"@*#",)]
    last = next(((line, name) for line, name in reversed(empty) if name not in known), None)
    return None if last is None or not first["code"] else (*last, _last_line(first) or "it is not set")


def _with_placeholder(command: JobCommand, name: str) -> JobCommand:
    if name.isdigit():
        argv = command.argv
        filled = [*argv, *[f"argument{at}" for at in range(len(argv) - 1, int(name) + 1)]]
        return replace(command, argv=tuple(filled))
    return replace(command, env={**command.env, name: name})


def _gets_further(run: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    return bool(run["trains"]) or len(run["reported"]) > len(first["reported"]) + 3


def _last_line(first: Mapping[str, Any]) -> str:
    """Returns the last line of the script's stderr, or of its stdout if stderr is empty; "" if both are."""
    lines = [line for name in ("stderr", "stdout") for line in first[name].strip().splitlines()[-1:] if line.strip()]
    return short(re.sub(r"\x1b\[[0-9;]*m", "", lines[0])) if lines else ""


def isolated(options: ImportOptions) -> Isolation:
    """Prints in which isolation the script will run, and returns it. Raises BadInputError if there is none and the
    script is not trusted."""
    try:
        found = isolation_here(trust=options.trust)
    except NotIsolatedError as error:
        raise refused(
            options.file, f"nothing was run, as nothing would keep it from changing files: {error}", NOT_ISOLATED
        ) from None
    options.say(f"{options.file}: {ISOLATED[found]}")
    return found


def started_of(
    found: Recording,
    command: JobCommand,
    options: ImportOptions,
    *,
    login: tuple[str, ...] = (),
    problems: tuple[Problem, ...] = (),
) -> Started:
    """Returns the training job of a recording. Raises BadInputError if it reached none, or if the number of its
    arguments depends on the job."""
    first = found.first
    if not first["trains"]:
        raise BadInputError(*problems) if problems else refused(options.file, not_reached(first), hint_for_script())
    at = max(range(len(first["trains"])), key=lambda index: training_score(first["trains"][index]["words"]))
    train = first["trains"][at]
    other = _same(train, at, found.second["trains"])
    if other is None:
        raise refused(options.file, "how many arguments it has depends on what only the job knows", hint_for_script())
    line = line_of(train, first["reported"])
    words = [expression(a, b, found.pairs) for a, b in zip(train["words"], other["words"], strict=True)]
    split = program_end(train["words"])
    launchers = tuple(
        Peeled(name=each["name"], words=tuple(word for word in each["words"] if not SUBMITTED.search(word)))
        for each in train["launched"]
    )
    headers = (*(command.headers if command.in_job else ()), *train["headers"])
    setup, outside = _setup(train, first["reported"], command.cwd)
    env, expanded, left = _variables(train, other, command, found)
    container, of_container = container_in(launchers, headers, outside)
    calculated = tuple(_asks(words, train["words"], options, line))
    own = train["words"][0].endswith("train.sh")
    argv = tuple(options.given.get(flag, word) for flag, word in zip(_flags_of(words), map(str, words), strict=True))
    return Started(
        program=argv[:split],
        argv=argv[split:],
        expand=tuple(dict.fromkeys([str(word) for word in words if word.expands] + expanded)),
        env=env,
        sizes=slurm_sizes(train["words"]) if own else _sizes(launchers, headers, train["env"]),
        launchers=launchers,
        headers=headers,
        container=container,
        setup=(*(() if outside or train["apart"] else login), *setup),
        notes=(*notes_of(found, at, command, options), *of_container, *left),
        problems=(*problems, *calculated),
    )  # fmt: skip


def _same(train: Mapping[str, Any], at: int, others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the command of the recording's second run that corresponds to `train`; None if there is none, or their
    numbers of arguments differ."""
    alike = [each for each in others[at : at + 1] if len(each["words"]) == len(train["words"])]
    return alike[0] if alike else None


def not_reached(first: Mapping[str, Any]) -> str:
    """Returns the reason why the script started no training command."""
    at = [each for each in first["reported"] if each[0] == "at"]
    where = f" in line {at[-1][2]} ({short(at[-1][3])})" if at else ""
    why = first["why"] or (f"it ended{where}" + (f" with code {first['code']}" if first["code"] else ""))
    others = (
        "; it started " + ", ".join(dict.fromkeys(each[0] for each in first["others"][:8])) if first["others"] else ""
    )
    return f"no training command was reached: {why}" + (f": {said}" if (said := _last_line(first)) else "") + others


def program_end(words: Sequence[str]) -> int:
    """Returns the index after the program: after its script, or after the module of -m; 1 if the words have neither."""
    for index, word in enumerate(words):
        if word == "-m":
            return index + 2
        if word.endswith(".py"):
            return index + 1
    return 1


def _flags_of(words: Sequence[Any]) -> Iterator[str]:
    """Yields, for each word, the flag before it, which --set names it by; "" if there is none."""
    flag = ""
    for word in map(str, words):
        yield flag
        flag = word if word.startswith("--") else ""


def _asks(words: Sequence[Any], was: Sequence[str], options: ImportOptions, line: str) -> Iterator[Problem]:
    before = None
    for flag, word, value in zip(_flags_of(words), words, was, strict=True):
        calculated = word.kind == CALCULATED and flag not in options.given and not is_secret_flag(flag)
        first, before = calculated and before != CALCULATED, word.kind
        if first:  # the first word of an expression that was split into several
            what = f"{flag or value} {value if flag else ''}".strip()
            yield Problem(where=f"{options.file}:{line}", what=f"{what}: it is calculated from what only the job knows",
                          hint=f"--set={flag or '--FLAG'}=VALUE")  # fmt: skip


def _setup(
    train: Mapping[str, Any], reported: Sequence[Sequence[str]], cwd: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the lines that prepare the trainer's shell, and those that run outside its container or on another
    machine."""
    order = [str(pid) for pid in train["pids"]]
    inside = order[: order.index(str(train["apart"])) + 1] if train["apart"] else order
    absent = {text for kind, _, _, text in reported if kind == "absent"}
    lines: dict[bool, list[str]] = {True: [], False: []}
    for kind, pid, _, text in reported[: train["reported"]]:
        if kind != "setup" or pid not in order:
            continue
        text = text.strip()
        if text.startswith("cd "):
            path = os.path.normpath(os.path.join(cwd, shlex.split(text)[-1]))
            text, cwd, stays = f"cd {shlex.quote(path)}", path, path == cwd
            if stays:
                continue
        if _PREPARES.match(text) or any(word in absent for word in shlex.split(text)[1:2]):
            lines[pid in inside].append(text)
    return tuple(lines[True]), tuple(lines[False])


def _variables(
    train: Mapping[str, Any], other: Mapping[str, Any], command: JobCommand, found: Recording
) -> tuple[dict[str, str], list[str], list[str]]:
    """Returns the variables that the script exports, their values that bash expands, and notes on variables that are
    left out."""
    env, expanded, left = dict[str, str](), list[str](), list[str]()
    base = {**found.first["env"], **command.env}
    asked_for = slurm_environment(command.headers)
    for name, value in train["env"].items():
        if (value == base.get(name) and name not in asked_for) or _OF_SHELLS.match(name) or name not in other["env"]:
            continue
        word = expression(value, other["env"][name], found.pairs)
        if word.kind == CALCULATED and not is_set_by_launcher(name):
            left.append(f"{name} was left out: it is calculated from what only the job knows")
            continue
        text = str(word)
        if name in base and name not in asked_for:
            text = text.replace(base[name], f"${{{name}}}")
        elif name.endswith("PATH"):
            text = f"${{{name}}}" * text.startswith(":") + text + f"${{{name}}}" * text.endswith(":")
        expanded += [text] if word.expands and not is_set_by_launcher(name) else []
        env[name] = text
    return env, expanded, left


def _sizes(launchers: Sequence[Peeled], headers: Sequence[str], env: Mapping[str, str]) -> Sizes:
    """Returns nodes and GPUs per node.

    srun starts one task per GPU if it starts Python, one per node if it starts torchrun.
    """
    found = sizes(launchers)
    if any(each.name == "torchrun" for each in launchers):
        found = found.over(torchrun_environment(env))
    found = found.over(slurm_sizes(headers))
    starts_ranks = any(each.name in ("torchrun", "accelerate", "deepspeed") for each in launchers)
    if not starts_ranks and found.gpus_per_node is None:
        found = replace(found, gpus_per_node=found.tasks_per_node)
    says_nodes = any("--nnodes" in word for each in launchers for word in each.words)
    # a launcher that sets any PET_* variable sets PET_NNODES too
    outside = any(name.startswith(TORCHRUNS) for name in env)
    if starts_ranks and found.nodes is None and not says_nodes and not outside and found.tasks is None:
        found = replace(found, nodes=1)  # torchrun's own default
    return found


ISOLATED = {
    Isolation.NAMESPACES: "run by bash in its own namespaces: launchers are stubs, no network, no file is kept",
    Isolation.LANDLOCK: "run by bash under Landlock: launchers are stubs, no network, no file is kept",
    Isolation.NONE: "run by bash without isolation (--trust): launchers are stubs, what it writes goes elsewhere",
}
NOT_ISOLATED = (
    "--trust runs it all the same, with every launcher a stub; or import what a run leaves: moe-autotune record -- "
    "COMMAND where namespaces are allowed, MOE_AUTOTUNE_RECORD=FILE in a real start, or its log"
)
MOE_RECORD_HINT = f"export PYTHONPATH={INJECTED}${{PYTHONPATH:+:$PYTHONPATH}} MOE_AUTOTUNE_RECORD=$PWD/record.json"
