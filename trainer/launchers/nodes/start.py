"""Prepares every start on several nodes: the control folder, and in it the command for each node's keeper."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import trainer
from trainer.interpreter import module_command
from trainer.launchers.local import rank_environment
from trainer.launchers.nodes import folder
from trainer.launchers.processes import MARK

KEEPER = "trainer.launchers.nodes.keeper"
OURS = ("PYTHONPATH", "PYTHONSAFEPATH")  # variables by which ranks import the same packages as this process


@dataclass(frozen=True, kw_only=True)
class PreparedStart:
    """A prepared start.

    `mark`: by which its processes are recognised; `token`: by which a keeper recognises the folder; `variables`: for
    the process that starts keepers on the nodes.
    """

    mark: str
    token: str
    variables: dict[str, str]


def prepare_start(
    control: Path,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    nodes: int,
    ranks_per_node: int,
    python: str,
    interface: str | None,
    passed: Mapping[str, str] = MappingProxyType({}),
    outlives_s: float | None = None,
) -> PreparedStart:
    """Prepares the control folder; removes files of an earlier start of that name, whose processes have all ended.
    `passed` are variables of the tuner that a node does not have; see `folder.Start` for the rest."""
    shutil.rmtree(control, ignore_errors=True)
    control.mkdir(parents=True, mode=0o700)  # the ranks' environment is written there
    mark, token = uuid.uuid4().hex, uuid.uuid4().hex
    variables = rank_environment(dict(env), mark=mark)
    start = folder.Start(
        token=token,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        argv=list(argv),
        env={**passed, **env, **{name: variables[name] for name in OURS}},
        python=python,
        interface=interface,
        outlives_s=outlives_s,
    )
    folder.write(folder.start_path(control), start)
    return PreparedStart(mark=mark, token=token, variables=variables)


def keeper_argv(prefix: Sequence[str], *, python: str, control: Path, token: str, mark: str | None = None) -> list[str]:
    """Returns the command that runs on each node: the container's prefix, then the keeper with our packages.

    `mark`: written into it if the tuner's environment is not passed to the node.
    """
    root = Path(trainer.__file__).parents[1]
    variables = [f"PYTHONPATH={root}", "PYTHONSAFEPATH=1", *([f"{MARK}={mark}"] if mark else [])]
    return [*prefix, "env", *variables, *module_command(KEEPER, str(control), token, python=python)]
