"""`moe-autotune studies`: lists all studies of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force, PageFile

Folder = Annotated[Path, Parameter(help="A folder with studies in it, or below it.")]


def studies(folder: Folder = Path("studies"), *, html: PageFile = None, force: Force = False) -> Answer:
    """List the studies of a folder: what was tuned, the gain, the walls, the cost."""
    import time

    from autotune.looks.working import working
    from autotune.output import page_at
    from autotune.studies.gathered import gathered
    from autotune.studies.terminal import show_studies

    page = page_at(html, inputs=(), force=force)
    with working("reading studies"):
        found = gathered(folder, now=time.time())
    if page is not None:
        from autotune.studies.page import studies_page

        page.write(studies_page(found, page_folder=page.path.resolve().parent))
    show_studies(found.document)
    if page is not None:
        print(f"page: {page.path}")
    return Answer(document=found.document)
