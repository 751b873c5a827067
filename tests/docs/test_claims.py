"""What the documents say in numbers and commands is so: counts are of the tables, and every command shown is taken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from autotune.cli import app
from policies.belief.factors import factors
from policies.fixes import FIXES
from tests.places import ROOT
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import presets
from trainer.recipe.rules import RULES

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MOVING = sum(bool(knob.tries) or knob.together for knob in KNOBS.values())
COUNTS = {  # what a document says: how many there are
    r"(\d+) rules of Megatron-Core": len(RULES),
    r"one of (\d+) presets": len(presets()),
    r"with (\d+) fixes": len(FIXES),
    r"(\d+) factors have a spread": len(factors()),
    r"(\d+) of \d+ knobs move": MOVING,
    r"\d+ of (\d+) knobs move": len(KNOBS),
}
SHOWN = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?moe-autotune (.*)$", re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    """(document, the words after `moe-autotune`) of every command in a block of code."""
    found = []
    for document in DOCUMENTS:
        blocks = re.findall(r"```\w*\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        lines = (line for block in blocks for line in SHOWN.findall(block.replace("\\\n", " ")))
        found += [(document.name, line) for line in lines]
    return found


@pytest.mark.parametrize("pattern", COUNTS)
def test_a_count_in_a_document_is_the_table_s(pattern: str) -> None:
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in (*DOCUMENTS, ROOT / "CHANGELOG.md")]
    said = [(name, int(number)) for name, text in texts for number in re.findall(pattern, text)]
    assert said
    assert [each for each in said if each[1] != COUNTS[pattern]] == []


@pytest.mark.parametrize(("document", "line"), shown(), ids=lambda text: text[:40])
def test_a_command_of_a_document_is_one_that_the_program_takes(document: str, line: str) -> None:
    app().parse_args(shlex.split(line, comments=True), exit_on_error=False, print_error=False)


def test_a_picture_of_a_document_is_there() -> None:
    for document in DOCUMENTS:
        for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", document.read_text(encoding="utf-8")):
            assert (Path(document).parent / path).is_file(), f"{document.name}: {path}"
