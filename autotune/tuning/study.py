"""Creates, locks and opens study folders: each is made once, never overwritten, and used by one tuner at a time.

A folder has `recipe.yaml`, `recipe.resolved.yaml`, the journal and `bursts/`; all other files are derived from the
journal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from autotune.tuning.environment import environment, version
from autotune.tuning.events import LessonAdded, StudyStarted
from autotune.tuning.journal import JOURNAL, Journal, Listener, read_events
from trainer.errors import BadInputError, Problem
from trainer.recipe import Recipe

STUDIES = Path("studies")
LOCK = ".lock"
MAX_NAMED = 6  # differing settings in a message; more are counted
FLOCK = "hhqqi"  # struct flock: type, whence, start, length, process
NOBODY, ELSEWHERE = 0, -1  # values instead of a process id: nobody holds the lock, or a process on another machine
GIVEN, RESOLVED, BURSTS = "recipe.yaml", "recipe.resolved.yaml", "bursts"
OTHER = "b.yaml"  # recipe B of a bisection
DEFAULT_SEED = 1234


@dataclass(frozen=True, kw_only=True)
class Study:
    """An open study, with the base recipe and seed that it was started with."""

    folder: Path
    recipe: Recipe
    seed: int
    journal: Journal
    lock: int  # descriptor of the locked file; the kernel releases the lock when the process ends

    @property
    def bursts(self) -> Path:
        return self.folder / BURSTS

    def close(self) -> None:
        self.journal.close()
        os.close(self.lock)


def originals(folder: Path) -> tuple[Path, ...]:
    """Returns the paths in a study that are not derived from others."""
    return tuple(folder / name for name in (JOURNAL, GIVEN, RESOLVED, OTHER, BURSTS))


def held(folder: Path) -> bool | None:
    """Returns whether a tuner works on the study; None if the file system has no locks.

    Not for the tuner itself: closing the file would release its own lock.
    """
    process = _holder(folder)
    return None if process is None else process != NOBODY


def suspended(folder: Path) -> bool:
    """Returns True if the tuner that holds the study is a local process that a signal has stopped (STOP, Ctrl-Z)."""
    process = _holder(folder)
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


def _holder(folder: Path) -> int | None:
    """Returns the process that holds the lock: NOBODY if it is free, ELSEWHERE on another machine; None without
    locks."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return NOBODY
    except OSError:
        return None
    try:
        asked = struct.pack(FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(fd)
    return NOBODY if kind == fcntl.F_UNLCK else process if process > 0 else ELSEWHERE


def free_folder(name: str, *, root: Path = STUDIES) -> Path:
    """Returns `studies/<name>-<n>` with the first n that does not exist."""
    number = 1
    while (folder := root / f"{name}-{number}").exists():
        number += 1
    return folder


def latest_folder(name: str, *, root: Path = STUDIES) -> Path:
    """Returns the latest study folder of that name. Raises BadInputError if there is none."""
    numbered = [path for path in root.glob(f"{escape(name)}-*") if path.name.removeprefix(f"{name}-").isdecimal()]
    if not numbered:
        raise BadInputError(
            Problem(
                where=str(root / f"{name}-*"),
                what="there is no study of this recipe to resume",
                hint="name its folder with --study, or leave --resume out to start one",
            )
        )
    return max(numbered, key=lambda path: int(path.name.removeprefix(f"{name}-")))


def create(
    recipe: Recipe,
    *,
    given: bytes,
    folder: Path,
    seed: int,
    clock: Callable[[], float],
    listener: Listener,
    lessons: Sequence[LessonAdded] = (),
    other: Recipe | None = None,
) -> Study:
    """Makes a study folder. `given` is the recipe file as the user wrote it, `lessons` come from other studies, `other`
    is recipe B of a bisection.

    Raises BadInputError if the folder is not empty; removes it again if it cannot be filled.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise _exists(folder)
    made = not folder.exists()
    try:
        (folder / BURSTS).mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        (folder / GIVEN).write_bytes(given)
        (folder / RESOLVED).write_text(recipe.to_yaml(resolved=True), encoding="utf-8")
        if other is not None:
            (folder / OTHER).write_text(other.to_yaml(), encoding="utf-8")
        study = _opened(folder, recipe, seed, lock, clock, listener, other)
        for lesson in lessons:
            study.journal.append(lesson)
        return study
    except OSError:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def resume(
    recipe: Recipe,
    *,
    folder: Path,
    seed: int | None,
    clock: Callable[[], float],
    listener: Listener,
    other: Recipe | None = None,
) -> Study:
    """Opens a study to continue it.

    Raises BadInputError if it is not a study, is in use, is from a newer version, was started with another recipe, seed
    or recipe B, or is a bisection resumed as a tuning run or the other way round.
    """
    events, _ = read_events(folder / JOURNAL)
    started = next((event for event in events if isinstance(event, StudyStarted)), None)
    if started is not None:
        _refuse_other(folder, started, recipe, seed)
        _refuse_other_question(folder, started, other)
        recipe = Recipe.model_validate(started.recipe)
        seed = started.seed
    lock = _lock(folder)
    return _opened(folder, recipe, DEFAULT_SEED if seed is None else seed, lock, clock, listener, other)


def _opened(
    folder: Path,
    recipe: Recipe,
    seed: int,
    lock: int,
    clock: Callable[[], float],
    listener: Listener,
    other: Recipe | None,
) -> Study:
    started = StudyStarted(
        version=version(),
        name=recipe.name,
        recipe=recipe.model_dump(mode="json"),
        digest=recipe.digest(),
        seed=seed,
        environment=environment(),
        other=None if other is None else other.model_dump(mode="json"),
    )
    journal = Journal(
        folder / JOURNAL, clock=clock, listener=listener
    )  # the first line is written at once, for `status` in another shell
    journal.replay_or_append(StudyStarted, lambda: started)
    return Study(folder=folder, recipe=recipe, seed=seed, journal=journal, lock=lock)


def _lock(folder: Path) -> int:
    """Locks the study for this process with a POSIX record lock, which ranks that outlive a killed tuner do not
    inherit."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode() or "unknown"
        os.close(fd)
        raise BadInputError(
            Problem(
                where=str(folder),
                what=f"another moe-autotune is working on this study (process {holder})",
                hint="wait for it or stop it, then use --resume",
            )
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Returns all settings by dotted name, defaults included, except the Slurm options of the study's next job."""
    found = dict(_leaves(recipe.written(resolved=True)))
    found.pop("burst.launcher.slurm.allocate", None)
    return found


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _refuse_other(folder: Path, started: StudyStarted, recipe: Recipe, seed: int | None) -> None:
    problems = []
    started_with = Recipe.model_validate(started.recipe)
    was, now = _settings(started_with), _settings(recipe)
    if recipe.tune.proxy_nodes is None:  # given on the command line that started the study
        was.pop("tune.proxy_nodes", None)
        now.pop("tune.proxy_nodes", None)
    differing = [f"{name} {was.get(name)} → {now.get(name)}" for name in was | now if was.get(name) != now.get(name)]
    if differing:
        named = ", ".join(differing[:MAX_NAMED]) + (
            f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
        )
        problems.append(
            Problem(
                where=str(folder),
                what=f"the study was started with another recipe ({named})",
                hint=f"resume it with {folder / GIVEN}, or start a new study with the new recipe",
            )
        )
    if seed is not None and seed != started.seed:
        problems.append(
            Problem(
                where="--seed",
                what=f"the study was started with seed {started.seed}, not {seed}",
                hint="leave --seed out when resuming",
            )
        )
    if problems:
        raise BadInputError(*problems)


def _refuse_other_question(folder: Path, started: StudyStarted, other: Recipe | None) -> None:
    """Raises BadInputError if a tuning run is resumed as a bisection, the other way round, or with another recipe B."""
    was = None if started.other is None else Recipe.model_validate(started.other)
    if (was is None) != (other is None):
        asked = "a tuning run" if was is None else "a bisection"
        command = "run" if was is None else "bisect"
        raise BadInputError(
            Problem(where=str(folder), what=f"the study is {asked}", hint=f"resume it with `moe-autotune {command}`")
        )
    if was is not None and other is not None and _settings(was) != _settings(other):
        raise BadInputError(
            Problem(
                where=str(folder),
                what="the study was started with another recipe B",
                hint=f"resume it with {folder / OTHER}, or start a new study",
            )
        )


def _exists(folder: Path) -> BadInputError:
    is_study = (folder / JOURNAL).exists()
    return BadInputError(
        Problem(
            where=str(folder),
            what="this study exists and is never overwritten" if is_study else "the folder exists and is not empty",
            hint="add --resume to continue it, or name another --study"
            if is_study
            else "name a folder that does not exist yet with --study",
        )
    )
