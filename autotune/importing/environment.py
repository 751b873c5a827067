"""Sorts the variables of a script: the recipe's knobs, the trainer's, the launcher's and secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.launch_scripts.launchers import TORCHRUNS
from trainer.recipe.knobs import KNOBS
from trainer.secrets import is_secret

# Set by whatever starts the ranks
LAUNCHERS = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
    "GPUS_PER_NODE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "CUDA_VISIBLE_DEVICES",
}
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, kw_only=True)
class Environment:
    knobs: Mapping[str, Any]
    trainer: Mapping[str, str]
    launcher: tuple[str, ...]  # names of variables that the launcher sets
    secret: tuple[str, ...]


def sorted_out(env: Mapping[str, str]) -> Environment:
    """Sorts the variables into knobs, the trainer's, the launcher's and secrets.

    A value that the knob does not allow stays a variable of the trainer.
    """
    knobs: dict[str, Any] = {}
    trainer: dict[str, str] = {}
    for name, text in env.items():
        knob = "threads_per_rank" if name == THREADS else name
        value = _value(knob, text)
        if value is not None:
            knobs[knob] = value
        elif not is_set_by_launcher(name) and not is_secret(name, text):
            trainer[name] = text
    secret = tuple(name for name, text in env.items() if is_secret(name, text) and name not in knobs)
    launcher = tuple(name for name in env if is_set_by_launcher(name))
    return Environment(knobs=knobs, trainer=trainer, launcher=launcher, secret=secret)


def is_set_by_launcher(name: str) -> bool:
    """Returns whether torchrun or another launcher sets the variable, so that a script need not."""
    return name in LAUNCHERS or name.startswith(TORCHRUNS)


def is_knob(name: str) -> bool:
    return name == THREADS or (name in KNOBS and KNOBS[name].acts == "environment")


def _value(name: str, text: str) -> Any:
    if name not in KNOBS or not (is_knob(name) or name == "threads_per_rank"):
        return None
    domain = KNOBS[name].domain
    value: Any = int(text) if domain.kind == "int" and re.fullmatch(r"\d+", text) else text
    return None if domain.problem(value) else value
