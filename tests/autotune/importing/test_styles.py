"""Scripts that a partial interpreter of bash would misread: the export starts exactly the command that bash starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.exports.checkout import checkout
from benchmarks.import_scripts import STYLES, recorded, scripts_of, tried

QUICK = ("arrays", "eval_tee", "submit_dir", "escaped_literals", "undecided_if", "fp16_fork")
SCRIPTS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.thorough)
    for path in sorted(STYLES.iterdir())
    if path.is_file()
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_export_of_an_import_starts_what_bash_starts(script: Path, tmp_path: Path) -> None:
    case = tried(script, tmp_path)
    assert case.same, case.why


@pytest.mark.thorough
def test_no_launch_script_of_megatron_lm_is_imported_as_another_command(tmp_path: Path) -> None:
    folder = checkout()
    if folder is None or not (folder / "examples").is_dir():
        pytest.skip("MEGATRON_LM names no checkout of Megatron-LM with its files")
    cases = [recorded(script, tmp_path) for script in scripts_of([str(folder / "examples"), str(folder / "tools")])]
    assert [case for case in cases if case.same is False] == []
    assert all(case.why for case in cases if case.same is None)
    assert sum(case.same is True for case in cases) >= 30
