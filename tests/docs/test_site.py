"""The site: a page for everything the program knows by name, no link that leads nowhere, and a search that finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from analyzers.walls import walls
from autotune.cli import app
from autotune.exit_codes import MEANINGS
from autotune.schemas.documents import DOCUMENTS
from docs.site.build import Built, build
from docs.site.markdown import rendered
from docs.site.page import Page, table
from docs.site.pages import every_page
from policies.fixes import FIXES
from tests.autotune.looks.browser import document_of, needs_browser
from tests.rows import filled
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import RULES
from trainer.recipe.sections import BurstSettings, Cluster, TuneSettings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Built]:
    folder = tmp_path_factory.mktemp("site")
    return folder, build(folder)


def test_no_link_leads_nowhere(site: tuple[Path, Built]) -> None:
    assert site[1].broken == ()
    assert site[1].links > 1000


def test_no_two_pages_have_the_same_path() -> None:
    paths = [page.path for page in every_page()]
    assert sorted(paths) == sorted(set(paths))


def test_every_command_knob_rule_fix_and_wall_has_its_page(site: tuple[Path, Built]) -> None:
    named = {
        "commands": [name for name in app() if not name.startswith("-")],
        "knobs": list(KNOBS),
        "rules": [rule.id for rule in RULES],
        "fixes": list(FIXES),
        "walls": [module.KIND.wall.value for module in walls()],
    }
    for folder, names in named.items():
        pages = {path.stem for path in (site[0] / folder).glob("*.html")} - {"index"}
        assert pages == set(names)


def test_a_page_says_what_its_table_says(site: tuple[Path, Built]) -> None:
    folder = site[0]
    knob = (folder / "knobs" / "micro_batch_size.html").read_text()
    assert "<code>--micro-batch-size</code>" in knob
    assert "training-equivalent" in knob
    command = (folder / "commands" / "run.html").read_text()
    assert "moe-autotune run RECIPE [options]" in command
    assert "<code>--notify</code>" in command
    outputs = (folder / "outputs.html").read_text()
    for words in MEANINGS.values():
        assert words.split("`")[0] in outputs
    assert "<code>saved_gpu_hours</code>" in outputs
    fix = (folder / "fixes" / "drop_recompute.html").read_text()
    assert "keep the activations that memory has room for" in fix


def test_every_key_of_a_recipe_is_listed_with_its_values_and_the_comment_in_the_source(
    site: tuple[Path, Built],
) -> None:
    text = (site[0] / "recipe.html").read_text()
    for kind in (TuneSettings, BurstSettings, Cluster):
        for name in kind.model_fields:
            assert f"<code>{name}</code>" in text
    assert "of the training that the tuned recipe is for" in text
    assert '<a href="#burst">burst</a>' in text


def test_only_model_and_cluster_of_a_recipe_are_needed(site: tuple[Path, Built]) -> None:
    whole = (site[0] / "recipe.html").read_text().split('<h2 id="cluster">')[0]
    assert whole.count("<td>needed</td>") == 2
    assert "the file&#x27;s name" in whole or "the file's name" in whole


def test_what_a_wall_is_how_it_shows_and_what_it_costs_are_paragraphs(site: tuple[Path, Built]) -> None:
    for module in filled(walls()):
        text = (site[0] / "walls" / f"{module.KIND.wall.value}.html").read_text()
        for heading in ("What it is.", "How it shows.", "What it costs."):
            assert f"<p><em>{heading}</em>" in text


def test_every_document_is_shown_by_its_fields_and_has_its_schema_as_a_file(site: tuple[Path, Built]) -> None:
    text = (site[0] / "outputs.html").read_text()
    for name, document in DOCUMENTS.items():
        assert f'<h2 id="document-{name}">' in text
        assert document.summary in text
        assert json.loads((site[0] / "schemas" / f"{name}.schema.json").read_text())["title"] == name
    for field in ("limit_gib", "model_tflops_per_gpu", "fits_probability", "passed_on"):
        assert f"<code>{field}</code>" in text


def test_a_link_that_leads_nowhere_is_named_with_its_page(tmp_path: Path) -> None:
    def page(markdown: str) -> Page:
        return Page(path="a.html", title="A", markdown=markdown, group="Begin", source="docs/a.md")

    for link in ("gone.md", "#gone", "a.md#gone"):
        built = build(tmp_path / "site", [page(f"# A\n\n[there]({link})\n")])
        assert len(built.broken) == 1
        assert built.broken[0].startswith("docs/a.md: ")
    assert build(tmp_path / "site", [page("# A\n\n[there](a.md#a) [code](../Makefile)\n")]).broken == ()


def test_a_file_of_the_repository_is_named_and_not_linked(site: tuple[Path, Built]) -> None:
    text = rendered("see [the makefile](../Makefile) there", lambda link: None)
    assert text.html == "<p>see the makefile there</p>\n"


def test_headings_of_the_same_words_have_anchors_of_their_own() -> None:
    text = rendered("## One\n\n## One\n\n## A `code` & more\n", lambda link: link)
    assert text.anchors == {"one", "one-1", "a-code--more"}


def test_a_cell_keeps_its_bars() -> None:
    html = rendered(table(("a", "b"), [("x | y", "two\nlines")]), lambda link: link).html
    assert "<td>x | y</td>" in html
    assert "<td>two lines</td>" in html


def test_no_page_has_a_reserved_mark_left_in_it(site: tuple[Path, Built]) -> None:
    for page in filled(every_page()):
        assert "<!-- README" not in page.markdown, page.path
        assert page.title
        assert re.match(r"[a-z0-9_./-]+\.html$", page.path, re.IGNORECASE), page.path


@needs_browser
def test_a_browser_draws_a_page_and_its_search_finds(site: tuple[Path, Built], tmp_path: Path) -> None:
    folder, _ = site
    page = (folder / "index.html").read_text()
    typed = 'const box = document.getElementById("search"); box.value = "micro_batch_size"; '
    typed += 'box.dispatchEvent(new Event("input"));'
    (folder / "typed.html").write_text(page.replace("</body>", f"<script>{typed}</script></body>"))
    drawn = document_of(folder / "typed.html", tmp_path / "profile")
    first = re.search(r'<ul id="found"[^>]*><li><a href="([^"]+)"', drawn)
    assert first is not None
    assert first[1] == "knobs/micro_batch_size.html"
