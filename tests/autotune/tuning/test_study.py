"""Study folders: never overwritten, one tuner at a time, nothing lost when the disk is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.tuning import study
from autotune.tuning.events import SCHEMA, StudyStarted
from autotune.tuning.journal import JOURNAL, read_study
from autotune.tuning.study import Study
from tests.autotune.tuning.fakes import FASTER, base_recipe, loop_in, micro_batches
from tests.places import ROOT
from trainer.errors import BadInputError
from trainer.recipe import Recipe, load_recipe


def silent(event: object, history: object) -> None:
    """Listens and does nothing."""


def begin(folder: Path, recipe: Recipe | None = None) -> Study:
    return study.create(
        recipe or base_recipe(), given=b"name: as given", folder=folder, seed=7, clock=lambda: 0.0, listener=silent
    )


def resume(folder: Path, recipe: Recipe | None = None, seed: int | None = None) -> Study:
    return study.resume(recipe or base_recipe(), folder=folder, seed=seed, clock=lambda: 0.0, listener=silent)


def test_a_new_study_holds_the_recipe_as_given_and_resolved(tmp_path: Path) -> None:
    begin(tmp_path / "s").close()
    assert (tmp_path / "s" / "recipe.yaml").read_bytes() == b"name: as given"
    assert "moe_token_dispatcher_type" in (tmp_path / "s" / "recipe.resolved.yaml").read_text()
    started = read_study(tmp_path / "s").study
    assert isinstance(started, StudyStarted)
    assert (started.schema, started.seed, started.name) == (SCHEMA, 7, "cpu-moe")
    assert "torch" in started.environment


def test_studies_are_numbered_from_one_and_the_latest_is_resumed(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"moe-{number}").mkdir()
    (tmp_path / "moe-notes").mkdir()
    assert study.free_folder("moe", root=tmp_path) == tmp_path / "moe-3"
    assert study.latest_folder("moe", root=tmp_path) == tmp_path / "moe-10"
    with pytest.raises(BadInputError, match="there is no study of this recipe to resume"):
        study.latest_folder("other", root=tmp_path)


def test_an_existing_study_is_not_overwritten(tmp_path: Path) -> None:
    begin(tmp_path / "s").close()
    before = (tmp_path / "s" / JOURNAL).read_bytes()
    with pytest.raises(BadInputError, match=r"never overwritten\n.*--resume"):
        begin(tmp_path / "s")
    assert (tmp_path / "s" / JOURNAL).read_bytes() == before


def test_a_folder_with_something_else_in_it_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInputError, match="not empty"):
        begin(tmp_path)


def test_a_study_continues_with_the_recipe_and_seed_it_started_with(tmp_path: Path) -> None:
    begin(tmp_path / "s").close()
    resumed = resume(tmp_path / "s")
    assert (resumed.recipe, resumed.seed) == (base_recipe(), 7)
    resumed.close()
    with pytest.raises(BadInputError, match=r"started with another recipe.*micro_batch_size 1 → 2"):
        resume(tmp_path / "s", base_recipe(micro_batch_size=2))
    with pytest.raises(BadInputError, match="started with seed 7, not 8"):
        resume(tmp_path / "s", seed=8)


def test_a_study_goes_on_in_a_job_that_is_asked_for_otherwise_and_on_no_other_nodes(tmp_path: Path) -> None:
    def asking(words: str, nodes: int = 2) -> Recipe:
        data = base_recipe().model_dump(mode="json")
        data["cluster"] |= {"nodes": nodes}
        data["burst"]["launcher"] = {"slurm": {"allocate": words}}
        return Recipe.model_validate(data)

    begin(tmp_path / "s", asking("--time=30")).close()
    resume(tmp_path / "s", asking("--time=60 --partition=long")).close()
    resume(tmp_path / "s", load_recipe(str(tmp_path / "s/recipe.resolved.yaml"))).close()  # as the tuner in the job
    with pytest.raises(BadInputError, match=r"started with another recipe \(cluster.nodes 2 → 4\)"):
        resume(tmp_path / "s", asking("--time=30", nodes=4))


def test_a_study_killed_before_its_first_line_can_be_resumed(tmp_path: Path) -> None:
    begin(tmp_path / "s").close()
    (tmp_path / "s" / JOURNAL).write_bytes(b'{"event":"stu')
    resume(tmp_path / "s", seed=9).close()
    started = read_study(tmp_path / "s").study
    assert started is not None
    assert started.seed == 9


def test_a_study_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "s").close()
    journal = tmp_path / "s" / JOURNAL
    journal.write_bytes(b'{"event":"study","schema":99,"unheard":{"of":1}}\n')
    for act in (resume, read_study):
        with pytest.raises(BadInputError, match=r"schema 99.*up to 1\n.*update moe-autotune"):
            act(tmp_path / "s")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    begin(tmp_path / "s").close()
    journal = tmp_path / "s" / JOURNAL
    journal.write_bytes(journal.read_bytes() + b"not json\n")
    with pytest.raises(BadInputError, match="line 2: not an event of a study"):
        read_study(tmp_path / "s")


@pytest.fixture
def other_tuner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts another process that has the study open until its input ends."""
    program = (
        "import sys; from pathlib import Path; from tests.autotune.tuning.test_study import begin;"
        "begin(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_study_another_tuner_works_on_is_refused_until_that_one_dies(
    tmp_path: Path, other_tuner: subprocess.Popen[str]
) -> None:
    with pytest.raises(BadInputError, match=rf"another moe-autotune .* \(process {other_tuner.pid}\)"):
        resume(tmp_path / "s")
    other_tuner.kill()
    other_tuner.wait()
    resume(tmp_path / "s").close()


class FullDisk:
    """`os.write` on a disk with room for so many bytes: it writes what fits, then fails, as a real one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr("autotune.tuning.journal.os.write", self.write)

    def write(self, fd: int, data: Any) -> int:
        if self.room is None:
            return self._write(fd, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_disk_that_fills_up_leaves_a_whole_journal_and_a_study_that_goes_on(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_in(tmp_path / "whole", rule=micro_batches, ideas=[FASTER]).run()
    disk = FullDisk(monkeypatch)
    loop = loop_in(tmp_path / "s", rule=micro_batches, ideas=[FASTER])
    disk.room = 3000 + room
    with pytest.raises(OSError, match="No space left") as error:
        loop.run()
    assert error.value.filename == str(tmp_path / "s" / JOURNAL)
    assert (tmp_path / "s" / JOURNAL).read_bytes().endswith(b"\n")
    disk.room = None
    loop_in(tmp_path / "s", rule=micro_batches, ideas=[FASTER]).run()
    assert read_study(tmp_path / "s").trials == read_study(tmp_path / "whole").trials


def test_a_study_that_cannot_be_filled_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch).room = 0
    with pytest.raises(OSError, match="No space left"):
        begin(tmp_path / "s")
    assert not (tmp_path / "s").exists()
