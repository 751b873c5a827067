"""A launch script: which of its commands trains, what starts the ranks, and what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from autotune.importing.container import container_in
from autotune.importing.environment import is_knob, is_launchers
from autotune.importing.files import Beside
from autotune.importing.found import Asked, Started, check_given, short
from trainer.command_line.launchers import (
    TORCHRUNS,
    Sizes,
    Start,
    peel,
    sizes,
    slurm_environment,
    slurm_sizes,
    torchrun_environment,
)
from trainer.command_line.login import login_line
from trainer.command_line.megatron_bridge.read import OVERRIDE
from trainer.command_line.shell import Command, Gap, Script, Word, read_script
from trainer.command_line.shell.expansion import NOT_SET, NOT_UNDERSTOOD
from trainer.command_line.shell.loops import ARGUMENTS
from trainer.command_line.shell.remote import is_apart
from trainer.errors import BadInputError, Problem, refused
from trainer.secrets import is_secret, is_secret_flag

TRAINS = re.compile(r"(.*/)?(pretrain\w*|train\w*|finetune\w*|run_recipe|run_pretrain\w*)\.py$")
# A burst writes elsewhere and saves nothing: what only running the script could tell may stay as it was written.
NOT_NEEDED = {
    "--save",
    "--load",
    "--tensorboard-dir",
    "--wandb-project",
    "--wandb-exp-name",
    "--wandb-save-dir",
    "--wandb-entity",
    "--log-file",
    "--logging-dir",
    "--config-logger-dir",
    "--ckpt-convert-save",
    "--profile-dir",
    "--one-logger-run-name",
    "--data-cache-path",
    "checkpoint.save",
    "checkpoint.load",
    "logger.tensorboard_dir",
    "logger.wandb_project",
    "logger.wandb_exp_name",
    "logger.wandb_save_dir",
    "logger.wandb_entity",
}
# their values are written with * and [ and name no files
PATTERNS = {
    "--moe-layer-freq",
    "--pipeline-model-parallel-layout",
    "--hybrid-override-pattern",
    "--linear-attention-freq",
}


def started(text: str, asked: Asked) -> Started:
    """The training command of a script. BadInputError names everything that has to be told beside it."""
    beside = Beside(folder=Path(asked.file).parent)
    script = read_script(text, given=asked.given, beside=beside, path=str(Path(asked.file).resolve()))
    check_given(asked, text, *beside.texts.values())
    command, start, others = _training(script, asked)
    words = [command.words[index] for index in start.command]
    python = (start.python or "").split()
    split = _program_end(words) if not python[1:] else 1
    argv = words[split:]
    program = [gap for word in words[:split] for gap in word.gaps]
    program += [gap for word in command.words for gap in word.gaps if any(gap.text in each for each in start.within)]
    _refuse_gaps([*program, *_needed(argv), *_needed_env(command)], asked)
    notes = [*others, *script.notes_in_order(), *_as_written(argv, command.line)]
    container, told = container_in(command, start, script.headers)
    notes += told
    own_launcher = _starts_bridge([word.text for word in words])
    if own_launcher:
        notes.append(f"{words[0].text} starts the ranks itself: write what one of them runs under trainer.command")
    sbatch = {name: Word(text=text) for name, text in slurm_environment(script.headers).items()}
    env = {**sbatch, **command.env, **_launcher_env(command, start)}
    left_out = [name for name, word in env.items() if word.gaps and not is_launchers(name)]
    notes += [f"{name} was left out: {short(env[name].text)} is not known" for name in left_out]
    return Started(
        program=(*start.within, *python, *(word.text for word in words[:split])),
        argv=tuple(word.text for word in argv),
        env={name: word.text for name, word in env.items() if not word.gaps},
        sizes=slurm_sizes([word.text for word in argv]) if own_launcher else _sizes(start, script, env),
        launchers=start.peeled,
        headers=script.headers,
        container=container,
        setup=(*(() if command.outside or is_apart(command.words) else login_line(text)), *command.setup),
        notes=tuple(notes),
    )


def _launcher_env(command: Command, start: Start) -> dict[str, Word]:
    """Variables in a launcher's words, as of `env PATH=/here:$PATH`: its own value is kept as ${PATH}."""
    gaps = [gap for word in command.words for gap in word.gaps]
    found = {}
    for name, text in start.env:
        for gap in gaps:
            text = text.replace(gap.text, f"${{{name}}}") if gap.name == name and gap.why == NOT_SET else text
        found[name] = Word(text=text, gaps=tuple(gap for gap in gaps if gap.name != name and gap.text in text))
    return found


def _sizes(start: Start, script: Script, env: Mapping[str, Word]) -> Sizes:
    """One srun task a GPU where srun starts Python itself, one a node where it starts torchrun."""
    found = sizes(start.peeled)
    if any(each.name == "torchrun" for each in start.peeled):
        found = found.over(torchrun_environment({name: word.text for name, word in env.items() if not word.gaps}))
    found = found.over(slurm_sizes(script.headers))
    starts_ranks = any(each.name in ("torchrun", "accelerate", "deepspeed") for each in start.peeled)
    if not starts_ranks and found.gpus_per_node is None:
        found = replace(found, gpus_per_node=found.tasks_per_node)
    says_nodes = any("--nnodes" in word for each in start.peeled for word in each.words)
    outside = any(name.startswith(TORCHRUNS) for name in env)  # PET_NNODES is set by whoever sets the others
    if starts_ranks and found.nodes is None and not says_nodes and not outside and found.tasks is None:
        found = replace(found, nodes=1)  # torchrun's own default
    return found


def _training(script: Script, asked: Asked) -> tuple[Command, Start, list[str]]:
    """The command that trains: named like one, then the one with the most flags; a note of each other one."""
    known = [replace(command, words=_from_first_known(command.words)) for command in script.commands]
    starts = [(command, peel([word.text for word in command.words])) for command in known]
    trains = [pair for pair in starts if _is_python(*pair)]
    if not trains:
        raise refused(
            asked.file,
            "no command in it starts a training program" + _followed(script),
            "name the script that starts pretrain_gpt.py or the like, or a file of its arguments",
        )
    best = max(trains, key=lambda pair: (pair[0].sure, _named(*pair), _flags(*pair)))
    alike = [pair for pair in trains if pair[0].sure == best[0].sure and _named(*pair) == _named(*best)]
    if not best[0].sure and len(alike) > 1:
        lines = ", ".join(str(pair[0].line) for pair in alike)
        raise refused(asked.file, f"which of the lines {lines} is run depends on an undecided test", _decide(script))
    others = {pair[0].line: _program_of(*pair) for pair in trains if _is_another(pair, best)}
    notes = [
        f"line {line}: {program} is started too: line {best[0].line} is what was imported, as it has the most flags"
        for line, program in others.items()
    ]
    return *best, notes


def _program_of(command: Command, start: Start) -> str:
    words = _texts(command, start)
    return next((word for word in words if word.endswith(".py")), words[0])


def _is_another(pair: tuple[Command, Start], best: tuple[Command, Start]) -> bool:
    """A second training command of the same script."""
    trains = _named(*pair) or _flags(*pair) * 2 > _flags(*best)
    return trains and pair[0] is not best[0] and _texts(*pair) != _texts(*best)


def _from_first_known(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Without words in front that nobody knows, as of `$PREFIX python train.py`."""
    first = next((index for index, word in enumerate(words) if not word.gaps), len(words))
    return words[first:]


def _decide(script: Script) -> str:
    undecided = [line for line, what in script.notes if "could not be decided" in what]
    return "; ".join(f"--set if@{line}=yes or no" for line in sorted(set(undecided))) or "--set its variables"


def _followed(script: Script) -> str:
    notes = script.notes_in_order()
    return f" ({'; '.join(notes[:3])})" if notes else ""


def _texts(command: Command, start: Start) -> list[str]:
    return [command.words[index].text for index in start.command]


def _is_python(command: Command, start: Start) -> bool:
    words = _texts(command, start)
    named = any(re.search(r"\.py$", word) for word in words[:4])
    python = start.python is not None or (named and "python" in words[0]) or "-m" in words[1:3]
    return bool(words) and (python or _starts_bridge(words))


def _starts_bridge(words: list[str]) -> bool:
    """Megatron-Bridge's own train.sh, which starts the ranks by itself."""
    return words[0].endswith(".sh") and "--recipe" in words


def _named(command: Command, start: Start) -> bool:
    return any(TRAINS.match(word) for word in _texts(command, start)[:4])


def _flags(command: Command, start: Start) -> int:
    return sum(word.startswith("--") or "=" in word for word in _texts(command, start))


def _program_end(words: list[Word]) -> int:
    """Behind the script, or behind the module of -m."""
    for index, word in enumerate(words):
        if word.text == "-m":
            return index + 2
        if word.text.endswith(".py"):
            return index + 1
    return 1


def _needed(argv: list[Word]) -> list[Gap]:
    """Gaps in words that the trainer has to know."""
    return [
        gap
        for flag, word in _with_flags(argv)
        for gap in word.gaps
        if flag not in NOT_NEEDED and not is_secret_flag(flag)
    ]


def _with_flags(argv: list[Word]) -> Iterator[tuple[str, Word]]:
    """Each word with the flag, or the path of Megatron-Bridge, that it belongs to."""
    flag = ""
    for word in argv:
        if word.text.startswith("--"):
            flag = word.text.partition("=")[0]
        elif override := OVERRIDE.fullmatch(word.text):
            flag = override[1]
        yield flag, word


def _as_written(argv: list[Word], line: int) -> list[str]:
    """A note a word that stays although only running the script could tell it, or a shell would replace it."""
    notes = []
    for flag, word in _with_flags(argv):
        if is_secret_flag(flag):
            continue
        if word.gaps:
            value = word.text.partition("=")[2] if word.text.startswith((f"{flag}=", "--")) else word.text
            notes.append(f"line {word.gaps[0].line}: {flag} {value} stays as it was written")
        elif word.pattern and flag not in PATTERNS:
            shown = word.text if word.text.startswith("--") else f"{flag} {word.text}"
            notes.append(f"line {line}: {shown} stays as written; no shell looks for such files in a burst")
    return notes


def _needed_env(command: Command) -> list[Gap]:
    return [gap for name, word in command.env.items() if is_knob(name) and not is_secret(name) for gap in word.gaps]


def _refuse_gaps(gaps: list[Gap], asked: Asked) -> None:
    problems = {
        gap.name: Problem(
            where=f"{_file_of(gap, asked)}:{gap.line}", what=f"{short(gap.text)}: {gap.why}", hint=_hint(gap)
        )
        for gap in sorted(gaps, key=lambda gap: gap.line)
    }
    if problems:
        raise BadInputError(*problems.values())


def _file_of(gap: Gap, asked: Asked) -> str:
    return asked.file if gap.file is None else str(Path(asked.file).parent / gap.file)


def _hint(gap: Gap) -> str:
    if gap.name == ARGUMENTS:
        return "--set '@=…' with the arguments that the script is started with, --set '@=' where there are none"
    if gap.name.startswith("if@"):
        return f"--set {gap.name}=yes or --set {gap.name}=no"
    if gap.why == NOT_UNDERSTOOD:
        return "write it in quotes, as bash needs it, or import a file of the arguments"
    if "\n" in gap.name:
        return "write what it gives in its place, or import a file of the arguments"
    return f"--set {gap.name}=VALUE" if gap.has_own_name or gap.name.isdigit() else f"--set '{gap.name}=VALUE'"
