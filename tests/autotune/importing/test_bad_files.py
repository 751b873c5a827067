"""Checks that a file that is not one of a training job is refused at once, whatever it contains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from trainer.errors import BadInputError


def refusal(path: Path) -> str:
    with pytest.raises(BadInputError) as refused:
        imported(ImportOptions(file=str(path), gpu="h100", nodes=1))
    return str(refused.value)


def test_a_pipe_a_device_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    assert "not a regular file" in refusal(tmp_path / "pipe.sh")
    assert "not a regular file" in refusal(Path("/dev/zero"))
    with (tmp_path / "huge.sh").open("wb") as huge:
        huge.truncate(2**30)
    assert "larger than 64 MiB" in refusal(tmp_path / "huge.sh")


BOMB = "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40))
TEXTS = {
    "bomb.yaml": ("train: {}\noptimizer: {}\na0: &a0 {x: 1}\n" + BOMB + "model: {z: *a39}\n", "aliases"),
    "self.yaml": ("train: {}\noptimizer: {}\nmodel: &m\n  inner: *m\n", "nested too deeply"),
    "deep.yaml": ("model: " + "[" * 1000 + "]" * 1000 + "\n", "nested too deeply"),
    "deep.json": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    "deep.sh": ("#!/bin/bash\nX=" + "$(" * 3000 + ")" * 3000 + "\n", "no training command was reached"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_would_be_read_without_end_is_refused(name: str, tmp_path: Path) -> None:
    text, why = TEXTS[name]
    (tmp_path / name).write_text(text)
    assert why in refusal(tmp_path / name)
