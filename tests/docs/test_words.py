"""Checks the words of documents, pages, help, messages and reports, and the openings of docstrings."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from analyzers import analyze
from autotune.diagnose.next_steps import next_steps
from autotune.diagnose.page import diagnosis_page
from autotune.report.write import render
from autotune.tuning.history import History
from docs.site.pages import every_page
from tests.analyzers.drawing import ALL_TO_ALL, GEMM, Drawing
from tests.autotune.report.drawn_study import events

ROOT = Path(__file__).parents[2]
PACKAGES = ("analyzers", "autotune", "docs", "policies", "trainer")
QUOTED = ("trainer/failure_words.py",)  # what other programs print
DIGESTED = ("machines.html",)  # shows the `about` of machine files, which is part of the digest of recipes

PER = r"step|rank|GPU|burst|node|second|hour|parameter|bucket|chunk"
REFUSED = {
    r"\b(fore|un)?told\b": "reported, given, predicted",
    r"\bheld (against|to)\b|\bholds? (two|it|them) (against|beside)\b": "compared with, checked",
    r"\bwhichever\b|\bwhat it takes\b|\bit would take\b": "name it; needs",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bdealt\b|\bdeals?\b": "route, split",
    r"\bgo(es|ing)? on\b": "continue, resume",
    r"\bonce more\b|\bafresh\b|\banew\b": "again, repeat of",
    r"\bmeanwhile\b|\bbeneath\b|\bin vain\b|\bsurely\b|\blikeliest\b": "say it plainly",
    r"\bbeg[au]n\b": "started",
    r"\b(came|comes?) to (an end|the end|\d)|\bwhat it comes to\b": "ended, is",
    r"\bfits with \d|\bfits with \{": "P(fits) N %",
    r"\bdone again\b": "recomputed, repeated",
    r"\bstands? (for|in|before|beside|on top|at)\b|\bstood\b": "is",
    r"\bwithout (rest|a word)\b": "completely, silently",
    r"\bby the closed form\b|\bby the estimate\b": "by estimate",
    r"\binside the noise\b": "within the noise",
    r"(?<!-)\bwall time\b": "wall-clock time: a wall is what a step's time is lost to",
    r"\bmatrix products?\b|\bgrouped products\b": "GEMM",
    r"\bsend-recv\b": "send/recv",
    r"\blearnt\b": "learned",
    r"(?<!there )\b(is|are) no (multiple|regular|whole|version|layer|file|study|time|page|knob)\b": "is not a",
    rf"(\}}|%|\d|\b(s|ms|us|µs|[GMK]i?B|GB/s|TFLOPS|tokens|launches|kernels|bursts|layers)) an? ({PER})\b": "per",
    r"\bone (file|line|row|event|job|page|bar|mark) an? \w+": "one per",
}
WORDS = [(re.compile(pattern), instead) for pattern, instead in REFUSED.items()]
NOT_SHOWN = re.compile(r"(^|\s)//.*|\{[#{%].*?[#}%]\}")  # comments of templates and scripts
QUOTES = re.compile(r"`[^`\n]*`|https?://\S+")

OPENINGS = {"What", "Of", "Where", "That", "How", "Whether", "Which", "Why", "As", "With", "Who", "Those"}
DOCUMENTED = (*PACKAGES, "benchmarks", "tests")  # packages whose docstrings start with none of OPENINGS


def found(text: str) -> list[str]:
    """Returns each refused word of a text with its context; text quoted as code is not checked."""
    prose = QUOTES.sub("`", text)
    hits = ((match, instead) for pattern, instead in WORDS for match in pattern.finditer(prose))
    return [f"{prose[max(0, m.start() - 40) : m.end() + 30]!r}: {instead}" for m, instead in hits]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Texts of one module."""

    literals: tuple[tuple[int, str], ...]
    refused_openings: tuple[str, ...]


@cache
def read(file: Path) -> Source:
    """Reads a module once for the tests of its strings and of its docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    shown = file.relative_to(ROOT).parts[0] in PACKAGES
    return Source(literals=tuple(literals(tree)) if shown else (), refused_openings=tuple(refused_openings(tree)))


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of every string of a module except docstrings; replacement fields of f-strings are `{}`."""
    inside: set[int] = set()
    nodes = list(ast.walk(tree))
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            inside.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            inside |= {id(each) for each in ast.walk(node) if each is not node}
            parts = (str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(parts)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def refused_openings(tree: ast.Module) -> list[str]:
    """Returns `line: first line of the docstring` for each docstring that starts with one of OPENINGS."""
    texts = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in documented(tree)]
    return [f"{line}: {text.splitlines()[0]}" for line, text in texts if re.split(r"\W", text)[0] in OPENINGS]


def documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields what may have a docstring: the node and what its statements define."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, part, ())
        for each in below if isinstance(below, list) else ():
            yield from documented(each)


def modules() -> list[Path]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return [file for file in files if not str(file.relative_to(ROOT)).startswith(QUOTED)]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_strings_of_the_program_use_the_words_of_the_field(package: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {each}"
        for file in modules()
        if file.is_relative_to(ROOT / package)
        for line, text in read(file).literals
        for each in found(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", DOCUMENTED)
def test_docstrings_start_with_a_verb_or_a_noun(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package} has no modules"
    wrong = [f"{file.relative_to(ROOT)}:{each}" for file in files for each in read(file).refused_openings]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("docstring", ["What is told.", "Whether it lies so.", "Of a rank, its time."])
def test_vague_openings_of_docstrings_are_refused(docstring: str) -> None:
    assert refused_openings(ast.parse(f'def f() -> None:\n    """{docstring}"""\n'))


@pytest.mark.parametrize("docstring", ["Returns whether it fits.", "Ascending ranks."])
def test_other_openings_of_docstrings_pass(docstring: str) -> None:
    assert not refused_openings(ast.parse(f'def f() -> None:\n    """{docstring}"""\n'))


def test_templates_and_scripts_of_pages_use_the_words_of_the_field() -> None:
    files = [file for end in ("*.j2", "*.js") for package in PACKAGES for file in (ROOT / package).rglob(end)]
    wrong = [
        f"{file.relative_to(ROOT)}: {each}"
        for file in files
        for each in found(NOT_SHOWN.sub("", file.read_text(encoding="utf-8")))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_page_of_the_site_uses_the_words_of_the_field() -> None:
    """Checks the documents and the pages made from docstrings, tables, help and schemas."""
    wrong = [f"{one.path}: {each}" for one in every_page() if one.path not in DIGESTED for each in found(one.markdown)]
    assert not wrong, "\n".join(wrong)


def test_a_report_and_a_diagnosis_use_the_words_of_the_field(tmp_path: Path) -> None:
    rendered = render(History(events()))
    drawing = Drawing()
    for number in (1, 2):
        start = 1000.0 * number
        drawing.step(number, start, start + 1000)
        drawing.kernel(GEMM, start + 100, start + 500, launched=start + 10)
        drawing.kernel(ALL_TO_ALL, start + 500, start + 900, launched=start + 20, stream=8)
    analysis = analyze([drawing.write(tmp_path)])
    texts = {
        "report.md": rendered["report.md"],
        "report.html": _shown(rendered["report.html"]),
        "diagnosis.html": _shown(diagnosis_page(analysis, "trace", next_steps(analysis, None))),
    }
    wrong = [f"{name}: {each}" for name, text in texts.items() for each in found(text)]
    assert not wrong, "\n".join(wrong)


def _shown(text: str) -> str:
    """Returns the text that a page shows, one line per element; code is replaced by a backtick."""
    plain = re.sub(r"<(style|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "\n", re.sub(r"<code>.*?</code>", "`", plain)))


@pytest.mark.parametrize(
    "text",
    [
        "608 ms a step",
        "trial 1 once more",
        "it fits with 99 %",
        "is no multiple of 8",
        "wall time decides",
        "as told",
    ],
)
def test_old_words_are_refused(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text", ["608 ms per step", "`told` is a name", "a step of 140 ms", "wall-clock time", "there is no trace"]
)
def test_plain_words_pass(text: str) -> None:
    assert not found(text)
