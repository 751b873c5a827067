"""Lists every page of the site: the written documents, then those made from the program's tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from docs.site.page import Page
from docs.site.reference import commands, fixes, knobs, machines, outputs, recipe, rules, walls

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "docs"
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)

TITLES = {"docs/index.md": "Overview", "README.md": "README"}  # else the first heading
# (file, group); documents without a row are listed last, under "More"
WRITTEN: tuple[tuple[str, str], ...] = (
    ("docs/index.md", "Begin"),
    ("docs/start.md", "Begin"),
    ("docs/first-night.md", "Begin"),
    ("docs/launch-scripts.md", "Begin"),
    ("docs/gap.md", "Begin"),
    ("docs/bisect.md", "Begin"),
    ("docs/many-nodes.md", "Begin"),
    ("docs/proxies.md", "Begin"),
    ("docs/gpus.md", "Begin"),
    ("docs/releases.md", "Begin"),
    ("docs/probe.md", "Begin"),
    ("docs/reading-a-report.md", "Read"),
    ("docs/reading-traces.md", "Read"),
    ("docs/how-it-chooses.md", "Understand"),
    ("docs/estimates.md", "Understand"),
    ("docs/twin.md", "Understand"),
    ("docs/benchmarks.md", "Understand"),
    ("docs/long-context.md", "Understand"),
    ("docs/glossary.md", "Understand"),
    ("docs/simulated.md", "Extend"),
    ("docs/machines.md", "Extend"),
    ("CONTRIBUTING.md", "Extend"),
    ("README.md", "More"),
    ("CHANGELOG.md", "More"),
)
MADE: tuple[Callable[[], Iterator[Page]], ...] = (
    commands.pages,
    recipe.pages,
    knobs.pages,
    rules.pages,
    fixes.pages,
    walls.pages,
    machines.pages,
    outputs.pages,
)
ORDER = ("Begin", "Read", "Reference", "Understand", "Extend", "More")


def every_page() -> list[Page]:
    """Returns the pages in the order of the list; the first is the front page."""
    known = {name for name, _ in WRITTEN}
    more = [(str(path.relative_to(ROOT)), "More") for path in sorted(DOCUMENTS.glob("*.md"))]
    written = [*WRITTEN, *(row for row in more if row[0] not in known)]
    pages = [_written(name, group) for name, group in written]
    pages += [page for make in MADE for page in make()]
    return sorted(pages, key=lambda page: ORDER.index(page.group))


def _written(name: str, group: str) -> Page:
    text = (ROOT / name).read_text(encoding="utf-8")
    title = TITLE.search(text)
    return Page(
        path=Path(name).stem.lower() + ".html",
        title=TITLES.get(name) or (title[1].replace("`", "") if title else name),
        markdown=text,
        group=group,
        source=name,
    )
