"""Writes the page of a fix as paragraphs: Markdown for the documentation, plain text for terminals and reports."""

from __future__ import annotations

from policies.changes.fix import Page


def markdown_paragraphs(page: Page) -> tuple[str, ...]:
    """Returns the summary, then what the fix is, how it shows, what it costs, when it does not apply and its source."""
    sections = (
        ("What it is", page.what),
        ("How it shows", page.shows),
        ("What it costs", page.costs),
        ("When it does not apply", page.not_when),
        ("Source", page.source),
    )
    return (page.summary, *(f"*{title}*: {text}" for title, text in sections))


def plain_paragraphs(page: Page) -> tuple[str, ...]:
    """Returns the page as plain text: summary, what the fix is, how it shows, what it costs, when it does not apply,
    source."""
    return tuple(without_code_marks(paragraph).replace("*", "") for paragraph in markdown_paragraphs(page))


def without_code_marks(text: str) -> str:
    """Removes the backticks around code."""
    return text.replace("`", "")
