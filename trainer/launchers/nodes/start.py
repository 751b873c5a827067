"""The beginning of every start on several nodes: its control folder, and in it what each node's keeper runs."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import trainer
from trainer.launchers.local import rank_environment
from trainer.launchers.nodes import folder
from trainer.launchers.processes import MARK

KEEPER = "trainer.launchers.nodes.keeper"
OURS = ("PYTHONPATH", "PYTHONSAFEPATH")  # by which ranks import the packages that this process runs


@dataclass(frozen=True, kw_only=True)
class PreparedStart:
    """`mark`: by which the start's processes are known. `token`: by which a keeper knows the folder. `variables`: of
    what brings keepers to the nodes."""

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
    """Empties the folder, where an earlier start of that name left something: nothing of it may run any more.
    `passed` are variables of the tuner's own that a node does not have; see `folder.Start` for the rest."""
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
    """Returns the command that runs on each node: after the container's prefix, with our own packages. `mark`: written
    out where the tuner's environment is not passed on to the node."""
    root = Path(trainer.__file__).parents[1]
    variables = [f"PYTHONPATH={root}", "PYTHONSAFEPATH=1", *([f"{MARK}={mark}"] if mark else [])]
    return [*prefix, "env", *variables, python, "-m", KEEPER, str(control), token]
