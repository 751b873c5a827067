"""A page for each wall: its module's docstring, and the fixes that address it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from analyzers.walls import walls
from docs.site.page import Page, table
from policies.fixes import FIXES

PARAGRAPH = re.compile(r"\n(?=\*[A-Z])")  # `*What it is.* …`


def pages() -> Iterator[Page]:
    modules = {module.WALL.value: (module.__doc__ or "").strip() for module in walls()}
    rows = [(f"[{name}]({name}.html)", text.partition("\n")[0]) for name, text in modules.items()]
    said = "# Walls\n\nWhat a step's time is lost to, one file each in `analyzers/walls/`.\n\n"
    index = said + table(("wall", "is"), rows)
    yield Page(path="walls/index.html", title="Walls", markdown=index, group="Reference")
    for name, text in modules.items():
        yield Page(path=f"walls/{name}.html", title=name, markdown=_page(name, text), group="Reference", listed=False)


def _page(name: str, text: str) -> str:
    answers = [
        (f"[{fix.name}](../fixes/{fix.name}.html)", fix.title, ", ".join(fix.phases))
        for fix in FIXES.values()
        if name in fix.walls
    ]
    heading, _, rest = text.partition("\n")
    rest = PARAGRAPH.sub("\n\n", rest)
    return f"# {name}\n\n{heading}\n{rest}\n\n## Fixes\n\n{table(('fix', 'what', 'phases'), answers)}\n"
