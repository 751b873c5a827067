"""Starts ranks over ssh, with a keeper on each host; torchrun's agents meet at the first host's address."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer.errors import ToolError
from trainer.interpreter import module_command
from trainer.launchers.hosts.connect import Connection, Connections, connections_path
from trainer.launchers.hosts.monitor import HostsMonitor
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.avoid import avoided, unneeded
from trainer.launchers.nodes.leftovers import end_leftovers
from trainer.launchers.nodes.processes import NodesProcesses
from trainer.launchers.nodes.start import keeper_argv, prepare_start
from trainer.launchers.nodes.supervise import start_supervise
from trainer.launchers.processes import sweep
from trainer.recipe import Recipe
from trainer.recipe.launching import HostsSettings, hosts_settings

# First characters of the tuner's variables that the other hosts lack and a trainer may use
PASSED_ON = (
    *("NCCL_", "TORCH_", "PYTORCH_", "NVTE_", "GLOO_", "UCX_", "CUDA_", "OMP_", "HF_", "NVSHMEM_", "TRITON_"),
    *("USE_MNNVL", "NVLINK_DOMAIN_SIZE", "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "LD_LIBRARY_PATH"),
)
# A broken connection is noticed within half a minute, and ssh never asks for a password
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=10", "ServerAliveCountMax=3", "LogLevel=ERROR")
SSH = ("ssh", "-n", "-T", *(word for option in _OPTIONS for word in ("-o", option)))


@dataclass(frozen=True, kw_only=True)
class HostsLauncher:
    """Launcher over ssh; `trainer.launchers.Launcher` documents its methods.

    `home` is a folder of this study alone. Hosts beyond the number that a recipe needs replace hosts that fail.
    """

    settings: HostsSettings
    home: Path
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    keeps_ranks: bool = field(default=True, init=False)

    @property
    def python(self) -> str:
        return self.settings.python or sys.executable

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], nodes: int, ranks_per_node: int, control: Path
    ) -> NodesProcesses:
        """Starts the ranks, after ending processes that an earlier tuner left on the hosts.

        Raises ToolError if there are too few hosts, or no ssh.
        """
        hosts = self.hosts(nodes)
        sweep()
        end_leftovers(self.home)
        prepared = prepare_start(
            control,
            argv,
            env=env,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            python=self.python,
            interface=self.settings.interface,
            passed={name: value for name, value in self.environ.items() if name.startswith(PASSED_ON)},
        )
        keeper = keeper_argv(
            self.settings.prefix, python=self.python, control=control, token=prepared.token, mark=prepared.mark
        )
        to = [
            Connection(host=host, argv=[*SSH, *self.settings.ssh, host, _here(shlex.join([*keeper, str(n), host]))])
            for n, host in enumerate(hosts)
        ]
        folder.write(connections_path(control), Connections(to=to))
        return NodesProcesses(
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            control=control,
            home=self.home,
            mark=prepared.mark,
            monitor=HostsMonitor(control=control),
            supervise=start_supervise(
                module_command("trainer.launchers.hosts.connect", str(control)),
                control=control,
                env=prepared.variables,
                last_command=[],
                stays=False,
            ),
        )

    def adopt(self, *, nodes: int, ranks_per_node: int, control: Path) -> None:
        """Returns None: ranks over ssh end with their tuner."""

    def hosts(self, nodes: int) -> list[str]:
        """Returns `nodes` hosts, in the recipe's order: those that have not failed and, if these are too few, those
        that failed first."""
        known = list(self.settings.hosts)
        if len(known) < nodes:
            raise ToolError(
                f"the recipe asks for {nodes} nodes, and burst.launcher.hosts names {len(known)}",
                hint="name as many hosts, or set cluster.nodes",
            )
        if shutil.which("ssh") is None:
            raise ToolError("launcher hosts needs ssh, and this machine has none", hint="install an OpenSSH client")
        bad = unneeded(avoided(self.home), known, nodes)
        return [host for host in known if host not in bad][:nodes]


def _here(command: str) -> str:
    """Returns the command after a `cd` to the tuner's folder if the host has it, as srun does: a trainer's arguments
    may be relative to it."""
    return f"cd {shlex.quote(os.getcwd())} 2>/dev/null; exec {command}"


def hosts_launcher(recipe: Recipe, home: Path) -> HostsLauncher:
    """Returns the launcher that the recipe asks for. Raises ToolError if it has no list of hosts."""
    settings = hosts_settings(recipe.burst.launcher)
    if settings is None:
        raise ToolError("launcher hosts has no list of hosts", hint="write burst.launcher: {hosts: [n1, n2]}")
    return HostsLauncher(settings=settings, home=home)
