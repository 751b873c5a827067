"""The container that a script runs its ranks in, and what of it bursts will have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.importing.found import short
from trainer.command_line.containers import Container, container_of
from trainer.command_line.launchers import Start
from trainer.command_line.shell import Command, Gap
from trainer.command_line.shell.remote import is_apart


def container_in(command: Command, start: Start, headers: tuple[str, ...]) -> tuple[Container, list[str]]:
    """What launcher slurm is told of it, nothing where another starts the ranks; and notes for the user."""
    of_slurm = bool(headers) or any(each.name == "srun" for each in start.peeled)
    said = container_of(start.peeled, headers) if of_slurm else Container()
    gaps = [gap for word in command.words for gap in word.gaps]
    open_texts = [gap.text for gap in gaps]
    known = replace(
        said,
        image=None if said.image is None or _is_open(said.image, open_texts) else said.image,
        mounts=tuple(mount for mount in said.mounts if not _is_open(mount, open_texts)),
        srun=tuple(word for word in said.srun if not _is_open(word, open_texts)),
        prefix=() if any(_is_open(word, open_texts) for word in said.prefix) else said.prefix,
    )
    return known, [*_of_container(command, said, known, gaps), *_outside(command)]


def _is_open(word: str, open_texts: list[str]) -> bool:
    return any(text in word for text in open_texts)


def _of_container(command: Command, said: Container, known: Container, gaps: list[Gap]) -> Iterator[str]:
    if known.image or known.prefix:
        yield (
            "it runs in a container, and so will bursts (burst.launcher): the folders of the study and of moe-autotune "
            "have to be mounted in it too, and python: names its interpreter where that is not where the tuner's is"
        )
    elif is_apart(command.words) or said.image:
        yield (
            "it runs in a container: start moe-autotune in it, or write burst.launcher: {slurm: {container_image: …}}, "
            "{hosts: …, prefix: …}"
        )
    lost = [word for word in (said.image, *said.mounts, *said.srun, *said.prefix) if word is not None]
    kept = {known.image, *known.mounts, *known.srun, *known.prefix}
    missing = [word for word in lost if word not in kept]
    unknown: dict[str, str] = {}  # $WORK and ${WORK} are one
    for gap in gaps:
        if any(gap.text in word for word in missing):
            unknown.setdefault(gap.name, gap.text)
    if unknown:
        left = short(" ".join(unknown.values()))
        yield f"not known of the container: {left} (--set it, or complete burst.launcher)"


def _outside(command: Command) -> Iterator[str]:
    """What a burst's ranks lack where the script starts its own elsewhere."""
    if command.outside:
        lines = "; ".join(short(line) for line in command.outside)
        yield f"what the script does before the container or the other machine is not done in it: {lines}"
