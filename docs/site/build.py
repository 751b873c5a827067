"""Builds the site: writes every page and checks every link."""

from __future__ import annotations

import json
import posixpath
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from docs.site.markdown import Rendered, rendered
from docs.site.page import Page
from docs.site.pages import DOCUMENTS, ROOT, every_page
from docs.site.reference.outputs import schema_files

HERE = Path(__file__).parent
PICTURES = (".png", ".svg")
SUMMARY = 160  # most characters of a page's summary


@dataclass(frozen=True, kw_only=True)
class Built:
    """Result of a build. `broken` has one sentence per dead link, with its page."""

    pages: int
    links: int
    broken: tuple[str, ...]


def build(folder: Path, pages: list[Page] | None = None) -> Built:
    """Writes the site into `folder`, in place of an older one."""
    given = every_page() if pages is None else pages
    if (folder / "index.html").exists():
        shutil.rmtree(folder)
    texts = {page.path: rendered(page.markdown, _Resolver(page, given)) for page in given}
    shell, groups = _shell(), _groups(given)
    for page in given:
        path = folder / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shell.render(page=page, text=Markup(texts[page.path].html), groups=groups), "utf-8")
    _write_assets(folder, given, texts)
    broken = [f"{page.source or page.path}: {dead}" for page in given for dead in _broken(page, texts, folder)]
    return Built(pages=len(given), links=sum(len(text.links) for text in texts.values()), broken=tuple(broken))


class _Resolver:
    """Resolves the links of one page: documents to their pages, pictures to their copies, other repository files to
    None."""

    def __init__(self, page: Page, pages: list[Page]) -> None:
        self._page = page
        self._of_source = {each.source: each.path for each in pages if each.source}

    def __call__(self, link: str) -> str | None:
        name, _, fragment = link.partition("#")
        if "://" in link or not name or not self._page.source:
            return link
        file = posixpath.normpath(posixpath.join(posixpath.dirname(self._page.source), name))
        if file in self._of_source:
            target = posixpath.relpath(self._of_source[file], posixpath.dirname(self._page.path) or ".")
            return target + (f"#{fragment}" if fragment else "")
        if file.startswith("docs/") and file.endswith(PICTURES):
            return self._page.up + posixpath.basename(file)
        return None if (ROOT / file).exists() else link


def _broken(page: Page, texts: dict[str, Rendered], folder: Path) -> list[str]:
    return [f"{link} is a dead link" for link in texts[page.path].links if not _leads(page, link, texts, folder)]


def _leads(page: Page, link: str, texts: dict[str, Rendered], folder: Path) -> bool:
    """Returns whether a link has a target; external links are not checked."""
    if "://" in link:
        return True
    name, _, fragment = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), name)) if name else page.path
    if path not in texts:
        return not fragment and (folder / path).is_file()
    return not fragment or fragment in texts[path].anchors


def _write_assets(folder: Path, pages: list[Page], texts: dict[str, Rendered]) -> None:
    """Writes the style sheet, the script with its search index, the JSON schemas, and the documents' pictures."""
    css = (files("autotune") / "looks" / "page.css").read_text(encoding="utf-8")
    (folder / "site.css").write_text(css + (HERE / "site.css").read_text("utf-8"), "utf-8")
    found = [[page.path, page.title, texts[page.path].summary[:SUMMARY]] for page in pages]
    script = (HERE / "search.js").read_text("utf-8").replace("[/* pages */]", json.dumps(found, ensure_ascii=False))
    (folder / "search.js").write_text(script, "utf-8")
    for path, text in schema_files():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    for picture in DOCUMENTS.iterdir():
        if picture.suffix in PICTURES:
            shutil.copy(picture, folder)


def _groups(pages: list[Page]) -> dict[str, list[Page]]:
    groups: dict[str, list[Page]] = {}
    for page in pages:
        if page.listed:
            groups.setdefault(page.group, []).append(page)
    return groups


def _shell() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("shell.html.j2")
