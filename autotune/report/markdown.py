"""Renders report.md, for a terminal or a pull request, with the same sections and tables as the page."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.looks.tables import Table
from autotune.report.head import Head, head_of
from autotune.report.material import Material, Section
from autotune.report.sections import sections_of
from autotune.report.story import story_of


def markdown(material: Material) -> str:
    """Renders the whole report as GitHub-flavoured markdown."""
    story = story_of(material.history, material.document)
    head = head_of(material)
    lines = [f"# {story.headline}", "", f"{_sentence(story.figure_note)} {_sentence(story.ended)}", ""]
    lines += [*(f"- {name}: {_flat(text)}" for name, text in head.facts), ""]
    lines += [f"- **{question}.** {_flat(answer)}" for question, answer in story.sentences]
    lines += ["", *_taking(head)]
    if head.changes:
        lines += ["", *_table(head.changes)]
    for section in sections_of(material):
        lines += ["", *_section(section)]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _taking(head: Head) -> Iterator[str]:
    """Yields the lines on using the tuned recipe: the export command, and the diff of the user's own command."""
    if head.export:
        yield f"- Use it, from the study's folder: `{head.export}`"
    if head.flags:
        yield ""
        yield "```diff"
        for change in head.flags:
            yield from (f"{sign} {word}" for sign, word in (("-", change.before), ("+", change.after)) if word)
        yield "```"


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    for paragraph in section.paragraphs:
        yield ""
        yield _flat(paragraph)
    for record in section.records:
        yield ""
        yield f"**{_flat(record.heading)}**"
        yield ""
        yield from (f"- {name}: {_flat(text)}" for name, text in record.facts if text)
        for table in record.tables:
            yield ""
            yield from _table(table)
    if section.table:
        yield ""
        yield from _table(section.table)


def _table(table: Table) -> Iterator[str]:
    yield _row(table.columns)
    yield "|" + "|".join("---:" if index in table.numbers else "---" for index in range(len(table.columns))) + "|"
    yield from map(_row, table.rows)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in cells) + " |"


def _flat(text: str) -> str:
    """Joins the text into one line and escapes the characters of Markdown's syntax."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")
