"""A journal with a swapped, lost or repeated line: every command says which line, and what to do instead."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning.journal import JOURNAL, read_study
from tests.autotune.report.drawn_study import events, write_study
from tests.rows import filled
from trainer.errors import BadInputError

COMMANDS = (
    "report s",
    "status s",
    "watch s",
    "export s --to yaml",
    "export s/1 --to yaml",
    "export s --to optuna -o o.db",
    "compare s/1 s/2",
    "diagnose s/1",
)


@pytest.fixture
def lines(empty_folder: Path) -> list[bytes]:
    write_study(Path("s"))
    return Path("s", JOURNAL).read_bytes().splitlines(keepends=True)


def write(lines: list[bytes]) -> None:
    Path("s", JOURNAL).write_bytes(b"".join(lines))


def refusal() -> str:
    with pytest.raises(BadInputError) as raised:
        read_study(Path("s"))
    return str(raised.value)


def test_any_two_neighbours_that_are_swapped_are_found(lines: list[bytes]) -> None:
    for at in filled(range(len(lines) - 2)):
        write([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]])
        assert f"{JOURNAL}, line {at + 1}" in refusal() or f"{JOURNAL}, line {at + 2}" in refusal(), at


def test_any_line_that_is_missing_inside_is_found_by_the_next(lines: list[bytes]) -> None:
    for at in filled(range(len(lines) - 2)):
        write([*lines[:at], *lines[at + 1 :]])
        assert f"{JOURNAL}, line {at + 1}" in refusal(), lines[at][:80]


def test_any_line_that_is_repeated_is_found(lines: list[bytes]) -> None:
    for at in filled(range(len(lines))):
        write([*lines[: at + 1], lines[at], *lines[at + 1 :]])
        assert f"it repeats line {at + 1}" in refusal()


def test_lines_in_any_order_never_end_in_an_error_of_ours(lines: list[bytes]) -> None:
    rng = random.Random(7)
    for _ in range(100):
        mixed = rng.sample(lines, k=rng.randint(1, len(lines)))
        if mixed == lines[: len(mixed)]:
            continue
        write(mixed)
        assert "journal.jsonl" in refusal()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_line_and_what_to_do(
    command: str, lines: list[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    write([*lines[:6], lines[7], lines[6], *lines[8:]])
    assert main(command.split()) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "line 7" in said
    assert "keep its first 6 lines" in said


def test_a_damaged_study_is_not_resumed(lines: list[bytes], capfd: pytest.CaptureFixture[str]) -> None:
    write(lines[:4] + lines[5:])
    assert main(["run", "cpu-moe", "--study", "s", "--resume"]) == 2
    assert "line 5" in capfd.readouterr().err


def test_studies_lists_the_others_and_names_the_damaged_line(
    lines: list[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("s", "studies/damaged")
    write_study(Path("studies/whole"))
    Path("studies/damaged", JOURNAL).write_bytes(b"".join([*lines[:4], *lines[5:]]))
    assert main(["studies"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "studies/whole: 1.83×" in said
    assert "studies/damaged: not read: journal.jsonl, line 5" in said


def test_an_event_of_a_trial_that_is_not_there_is_named(lines: list[bytes]) -> None:
    at = next(number for number, line in enumerate(lines) if b'"event":"burst_started"' in line)
    write([*lines[:at], lines[at].replace(b'"trial":0', b'"trial":40'), *lines[at + 1 :]])
    assert "burst 1 is of trial 40, which was not proposed" in refusal()


def test_a_whole_journal_and_one_that_is_cut_anywhere_are_read(lines: list[bytes]) -> None:
    assert len(read_study(Path("s")).finished) == sum(b'"event":"burst_finished"' in line for line in lines)
    for at in range(1, len(lines)):
        write(lines[:at])
        read_study(Path("s"))


def test_the_drawn_journal_has_every_kind_of_line_that_can_be_damaged() -> None:
    kinds = {type(event).__name__ for event in events()}
    assert {"Proposed", "Refused", "BurstStarted", "BurstFinished", "Analyzed", "Judged"} <= kinds
