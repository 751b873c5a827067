"""Takes the container of a script's ranks over to the bursts."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.importing.found import short
from trainer.launch_scripts.containers import Container, container_of
from trainer.launch_scripts.launchers import Peeled

_CONTAINERS = frozenset({"docker", "singularity", "enroot"})


def container_in(
    launchers: tuple[Peeled, ...], headers: tuple[str, ...], outside: tuple[str, ...]
) -> tuple[Container, list[str]]:
    """Returns the container of the ranks that Slurm starts (empty for other launchers), and notes for the user.

    `outside`: shell lines that the script runs outside the container.
    """
    of_slurm = bool(headers) or any(each.name == "srun" for each in launchers)
    known = container_of(launchers, headers) if of_slurm else Container()
    return known, [*_notes(launchers, known, outside)]


def _notes(launchers: tuple[Peeled, ...], known: Container, outside: tuple[str, ...]) -> Iterator[str]:
    if known.image or known.prefix:
        yield (
            "it runs in a container, and so will bursts (burst.launcher): the folders of the study and of moe-autotune "
            "have to be mounted in it too, and python: names its interpreter where that is not where the tuner's is"
        )
    elif any(each.name in _CONTAINERS for each in launchers):
        yield (
            "it runs in a container: start moe-autotune in it, or write burst.launcher: {slurm: {container_image: …}}, "
            "{hosts: …, prefix: …}"
        )
    if any(each.name == "ssh" for each in launchers):
        yield "ssh starts it on other machines: give their number with --nodes N and --gpus-per-node N"
    if outside:
        lines = "; ".join(map(short, outside))
        yield f"the script runs lines outside the container or on this machine, which bursts do not run: {lines}"
