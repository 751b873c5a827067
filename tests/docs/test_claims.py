"""Checks numbers and commands of the documents: counts are those of the tables, and every command shown is accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from autotune.cli import app, main
from policies.fixes import FIXES
from policies.surrogate.factors import factors
from tests.places import ROOT
from trainer.recipe.knobs import KNOBS
from trainer.recipe.load import recipe_from
from trainer.recipe.models import presets
from trainer.recipe.source import parse_source

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MOVING = sum(bool(knob.tries) or knob.together for knob in KNOBS.values())
COUNTS = {  # what a document says: how many there are
    r"one of (\d+) presets": len(presets()),
    r"with (\d+) fixes": len(FIXES),
    r"(\d+) factors have a spread": len(factors()),
    r"(\d+) of \d+ knobs move": MOVING,
    r"\d+ of (\d+) knobs move": len(KNOBS),
}
SHOWN = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?moe-autotune (.*)$", re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    """Returns (document, the words after `moe-autotune`) of every command in a block of code."""
    found: list[tuple[str, str]] = []
    for document in DOCUMENTS:
        blocks = re.findall(r"```\w*\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        lines = (line for block in blocks for line in SHOWN.findall(block.replace("\\\n", " ")))
        found += [(document.name, line) for line in lines]
    return found


def recipes() -> list[tuple[str, str]]:
    """Returns (document, YAML) of every complete recipe."""
    return [
        (document.name, block)
        for document in DOCUMENTS
        for block in re.findall(r"```yaml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        if re.search(r"^model:", block, re.MULTILINE) and re.search(r"^cluster:", block, re.MULTILINE)
    ]


@pytest.mark.parametrize("pattern", COUNTS)
def test_a_count_in_a_document_is_the_table_s(pattern: str) -> None:
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in (*DOCUMENTS, ROOT / "CHANGELOG.md")]
    said = [(name, int(number)) for name, text in texts for number in re.findall(pattern, text)]
    assert said
    assert [each for each in said if each[1] != COUNTS[pattern]] == []


@pytest.mark.parametrize(("document", "line"), shown(), ids=lambda text: text[:40])
def test_a_command_of_a_document_is_one_that_the_program_takes(document: str, line: str) -> None:
    app().parse_args(shlex.split(line, comments=True), exit_on_error=False, print_error=False)


@pytest.mark.parametrize(("document", "text"), recipes(), ids=lambda text: text[:30])
def test_a_recipe_of_a_document_is_a_recipe(document: str, text: str) -> None:
    recipe_from(parse_source(text, name=document))


def test_the_run_that_the_readme_shows_is_the_one_in_its_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"cost: (\d+) bursts.*\nbest: trial \d+ \([^)]+\), ([\d.]+×) .*95 % interval ([\d.–]+)\)", readme)
    assert shown
    bursts, speedup, interval = shown.groups()
    tables = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    row = next(line for line in tables.splitlines() if line.startswith("| packaged CPU recipe"))
    for figure in (speedup, interval, f"{bursts} of 20 bursts"):
        assert figure in row


def test_a_picture_of_a_document_is_there() -> None:
    pictures = [
        Path(document).parent / path
        for document in DOCUMENTS
        for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", document.read_text(encoding="utf-8"))
    ]
    assert pictures
    assert [picture for picture in pictures if not picture.is_file()] == []


def test_the_recipe_of_make_run_should_run_as_it_is() -> None:
    assert main(["check", "cpu-moe-slow"]) == 0
