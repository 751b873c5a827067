"""A twin: the file is a machine file, says what each figure is from, and is refused where nothing was measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autotune.twin.learning import twin_of_lesson, twin_of_study
from autotune.twin.probed import own_keys
from autotune.twin.written import twin_text
from policies.surrogate.learned import lesson_of_file
from policies.surrogate.lesson import Lesson
from tests.autotune.report.drawn_study import events, write_study
from trainer.errors import BadInputError
from trainer.microbenchmarks.row import Row
from trainer.recipe.load_machine import load_machine_file

PROBED = Lesson(
    study="a probe",
    trials=0,
    mean={"network": math.log(0.5), "gemm": 0.1},
    deviation={"network": 0.1, "gemm": 0.05},
)


def test_a_lesson_of_a_probe_becomes_a_machine_file_that_reads_back(tmp_path: Path) -> None:
    twin = twin_of_lesson(PROBED, name="ours", gpu="h100", versions={"torch": "2.9"})
    file = tmp_path / "ours.yaml"
    file.write_text(twin_text(twin))
    read = load_machine_file(str(file))
    assert read == twin.file
    assert read.links.network == 0.5
    assert read.estimate is not None
    assert lesson_of_file(read.estimate).mean == pytest.approx(PROBED.mean, abs=1e-3)


def test_the_file_says_what_a_figure_was_learned_from_and_how_sure_it_is() -> None:
    text = twin_text(twin_of_lesson(PROBED, name="ours", gpu="h100", versions={}))
    assert "network: 0.5    # links between NVLink domains [0.424, 0.589]" in text
    assert "gemm: {mean: 0.1, deviation: 0.05}    # dense GEMMs" in text


def test_what_the_published_machine_teaches_of_itself_is_taken_off() -> None:
    twin = twin_of_lesson(PROBED, name="ours", gpu="h100", versions={}, published=PROBED.mean)
    assert twin.file.links.network == 1.0
    assert twin.file.estimate is not None
    assert twin.file.estimate.factors["network"].mean == pytest.approx(math.log(0.5), abs=1e-3)


def test_all_rows_of_a_kind_measure_a_key_together() -> None:
    def rows(**measured: tuple[float, ...]) -> list[Row]:
        made = [(kind, each) for kind, values in measured.items() for each in values]
        return [Row(group="memory", kind=kind, name=kind, unit="GiB", measured=each) for kind, each in made]

    ours, published = rows(layer_kept=(3.0, 0.1), copy=(10.0, 30.0)), rows(layer_kept=(2.0, 0.5), copy=(10.0, 10.0))
    assert own_keys(ours, published) == {"memory.activations": 1.24, "links.pcie": 0.5}


def test_a_study_in_which_nothing_ran_has_no_twin(tmp_path: Path) -> None:
    write_study(tmp_path / "started", events(ended=False)[:4])
    with pytest.raises(BadInputError, match="no recipe has run in this study"):
        twin_of_study(tmp_path / "started", name="ours")
