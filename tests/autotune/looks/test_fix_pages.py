"""The page of a fix, as Markdown and as plain text."""

from __future__ import annotations

from autotune.looks.fix_pages import markdown_paragraphs, plain_paragraphs
from policies.changes.fix import Page
from policies.fixes import FIXES

DRAWN = Page(
    summary="A drawn fix.",
    what="`knob` at 2.",
    shows="the device waits.",
    costs="nothing.",
    not_when="`knob` is 2.",
    source="drawn 1.",
)


def test_a_page_is_its_summary_and_its_five_sections() -> None:
    assert markdown_paragraphs(DRAWN) == (
        "A drawn fix.",
        "*What it is*: `knob` at 2.",
        "*How it shows*: the device waits.",
        "*What it costs*: nothing.",
        "*When it does not apply*: `knob` is 2.",
        "*Source*: drawn 1.",
    )


def test_plain_paragraphs_have_no_marks() -> None:
    assert plain_paragraphs(DRAWN)[1] == "What it is: knob at 2."
    pages = [plain_paragraphs(fix.page) for fix in FIXES.values()]
    assert not [text for page in pages for text in page if "*" in text or "`" in text]
