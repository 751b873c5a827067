"""The container in which a launch line starts its ranks, as settings of launcher slurm.

Sources: `srun --help` with pyxis 0.20; singularity exec(1) of Apptainer 1.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.launch_scripts.launchers import SETTING, Peeled, options, stands_alone

IMAGE, MOUNTS = "--container-image", "--container-mounts"
_OF_PYXIS = ("--container-", "--no-container-")


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container.

    `image`, `mounts` and the words of `srun` are for pyxis; `prefix` is the program that starts it otherwise.
    """

    image: str | None = None
    mounts: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    def settings(self) -> dict[str, str | list[str]]:
        """Returns the parts that are set, by their names in `burst.launcher.slurm`."""
        lists = {"container_mounts": self.mounts, "srun": self.srun, "prefix": self.prefix}
        found: dict[str, str | list[str]] = {"container_image": self.image} if self.image else {}
        return found | {name: list(words) for name, words in lists.items() if words}


def container_of(peeled: Sequence[Peeled], headers: Sequence[str]) -> Container:
    """Returns the container in srun's options, else in the job's header.

    Leaves out the variables that its options set, which the ranks get anyway.
    """
    srun = [word for each in peeled if each.name == "srun" for word in each.words]
    given = [*options(headers, "srun"), *options(srun, "srun")]
    mounts = [mount for flag, value in given if flag == MOUNTS for mount in value.split(",") if mount]
    further = {_of_srun(flag, value): None for flag, value in given if flag.startswith(_OF_PYXIS)}
    return Container(
        image=dict(given).get(IMAGE),
        mounts=tuple(dict.fromkeys(mounts)),
        srun=tuple(word for word in further if word.partition("=")[0] not in (IMAGE, MOUNTS)),
        prefix=next((tuple(_without_variables(each)) for each in peeled if each.name == "singularity"), ()),
    )


def _of_srun(flag: str, value: str) -> str:
    return flag if stands_alone("srun", flag) else f"{flag}={value}"


def _without_variables(each: Peeled) -> Iterator[str]:
    sets, _ = SETTING[each.name]
    words = iter(each.words)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in sets:
            yield word
        elif not equals:
            next(words, None)
