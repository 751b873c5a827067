"""Reads a file of `moe-autotune record`, or of MOE_AUTOTUNE_RECORD in a real start, as a training job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypedDict

from autotune.importing.environment import is_set_by_launcher
from autotune.importing.found import ImportOptions, Started
from autotune.importing.scripts import program_end, started_of
from trainer.errors import refused
from trainer.launch_scripts.launchers import Sizes
from trainer.recording.jail import Isolation
from trainer.recording.record import JobCommand, Recording
from trainer.secrets import is_secret, redacted


class RecordDocument(TypedDict):
    """Document of `record --json`: the recording, or the variables that make a real start record itself."""

    schema: int
    file: str | None  # the file that -o wrote; null: stdout
    recorded: dict[str, Any] | None  # the recording, which `import` reads
    environment: str | None


def is_recorded(data: Any) -> bool:
    return isinstance(data, dict) and ("recording" in data or "inside" in data)


def written(found: Recording, command: JobCommand) -> dict[str, Any]:
    """Returns the recording as JSON, without secrets."""
    runs = {name: _without_secrets(getattr(found, name)) for name in ("first", "second")}
    otherwise = {path: _without_secrets(run) for path, run in found.otherwise.items()}
    recording = {"isolation": found.isolation, **runs, "otherwise": otherwise, "pairs": found.pairs}
    return {"schema": 1, "recording": recording, "command": {**asdict(command), "env": {}, "fixed": {}}}


def _without_secrets(run: Mapping[str, Any]) -> dict[str, Any]:
    trains = [{**each, "words": redacted(each["words"]), "env": _harmless(each["env"])} for each in run["trains"]]
    return {**run, "trains": trains, "env": _harmless(run["env"])}


def _harmless(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not is_secret(name, value)}


def started(data: Mapping[str, Any], options: ImportOptions) -> Started:
    """Returns the training job of a recording."""
    try:
        if "inside" in data:
            return _inside(data["inside"])
        runs = dict(data["recording"])
        runs["isolation"] = Isolation(runs["isolation"])
        runs["pairs"] = tuple(map(tuple, runs["pairs"]))
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in data["command"].items()}
        command: dict[str, Any] = lists
        return started_of(Recording(**runs), JobCommand(**command), options)
    except (KeyError, TypeError, IndexError) as error:
        raise refused(options.file, f"the recording is incomplete: {error!r}", "record the start again") from None


def _inside(inside: Mapping[str, Any]) -> Started:
    words, env = inside["words"], inside["env"]
    split = program_end(words)
    ranks, per_node = env.get("WORLD_SIZE", ""), env.get("LOCAL_WORLD_SIZE", "")
    tasks, each = (int(text) if text.isdigit() else None for text in (ranks, per_node))
    nodes = tasks // each if tasks and each and tasks % each == 0 else None
    return Started(
        program=tuple(words[:split]),
        argv=tuple(words[split:]),
        env={name: value for name, value in env.items() if not is_set_by_launcher(name)},
        sizes=Sizes(nodes=nodes, gpus_per_node=each, tasks=tasks),
        setup=(f"cd {inside['cwd']}",),
    )
