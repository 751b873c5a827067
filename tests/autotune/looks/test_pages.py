"""The pages of `estimate` and `plan`: one file each, nothing fetched, drawn as a browser draws them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.estimate.document import estimated
from autotune.estimate.page import estimate_page
from autotune.plan.document import Plan, planned
from autotune.plan.page import plan_page
from tests.autotune.looks.browser import count, document_of, needs_browser
from trainer.recipe import load_recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.schema import Recipe
from trainer.recipe.source import Source


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    data = {
        "name": "piped <&> small",
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": "h100", "nodes": 2},
        "parallelism": {"pp": 4, "ep": 4},
    }
    return recipe_from(Source(name="r", data=data))


@pytest.fixture(scope="module")
def plan(recipe: Recipe) -> Plan:
    return planned(recipe, top=6)


@pytest.fixture
def drawn(tmp_path: Path) -> Callable[[str], str]:
    def draw(page: str) -> str:
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        return document_of(tmp_path / "page.html", tmp_path / "profile")

    return draw


def test_pages_ask_the_network_for_nothing(recipe: Recipe, plan: Plan) -> None:
    for page in (estimate_page(estimated(recipe)), plan_page(plan)):
        assert not re.findall(r"https?://|@import|<link|src=", page)
        assert "default-src 'none'" in page
        assert "piped &lt;&amp;&gt; small" in page
        assert "piped <&>" not in page


@needs_browser
def test_the_estimate_is_drawn_with_a_column_a_rank_and_the_limit(recipe: Recipe, drawn: Callable[[str], str]) -> None:
    document = drawn(estimate_page(estimated(recipe)))
    assert "data-error" not in document
    assert count(document, r'class="limit"') == 1
    assert count(document, r'<rect[^>]*class="k-m-weights"') >= 4
    assert count(document, r'<rect[^>]*class="k-compute"') >= 1
    assert count(document, r'class="whisker"') == 2


@needs_browser
def test_the_plan_is_drawn_with_its_marks_and_says_each_layout_on_hover(
    plan: Plan, drawn: Callable[[str], str]
) -> None:
    document = drawn(plan_page(plan))
    assert "data-error" not in document
    marks = count(document, r"<circle[^>]*data-tip=")
    assert count(document, rf'data-points="{marks}"') == 1
    assert count(document, r'class="point chosen"') == len(plan.choices)
    assert count(document, r"data-tip=\"[^\"]*EP\d") > 10
    assert 'id="tip"' in document


def test_the_commands_write_the_pages_they_are_asked_for(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "r.yaml").write_text(recipe.to_yaml())
    assert main(["estimate", str(tmp_path / "r.yaml"), "--html", str(tmp_path / "e.html")]) == 0
    assert main(["plan", str(tmp_path / "r.yaml"), "--html", str(tmp_path / "p.html")]) == 0
    assert load_recipe(str(tmp_path / "r.yaml")).name in (tmp_path / "e.html").read_text().replace(
        "&lt;&amp;&gt;", "<&>"
    )
    assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_ends_with_2(
    tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text(recipe.to_yaml())
    assert main(["estimate", str(tmp_path / "r.yaml"), "--html", str(tmp_path / "none" / "e.html")]) == 2
    assert "→" in capsys.readouterr().err
