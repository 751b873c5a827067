"""A page for each fix, made from its `FIX`: its page, its phases and its claims."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.looks.fix_pages import markdown_paragraphs
from autotune.looks.quantities import percent
from docs.site.page import Page, facts, table
from policies.changes.fix import Claim, Fix
from policies.fixes import FIXES


def pages() -> Iterator[Page]:
    yield Page(path="fixes/index.html", title="Fixes", markdown=_index(), group="Reference")
    for fix in FIXES.values():
        yield Page(path=f"fixes/{fix.name}.html", title=fix.name, markdown=_page(fix), group="Reference", listed=False)


def walls_of(fix: Fix) -> str:
    return ", ".join(f"[{wall}](../walls/{wall}.html)" for wall in fix.walls)


def _index() -> str:
    rows = [
        (f"[{fix.name}]({fix.name}.html)", fix.title, ", ".join(fix.phases), walls_of(fix)) for fix in FIXES.values()
    ]
    said = f"The {len(FIXES)} known fixes, one file each in `policies/fixes/`; a page is made from the file's `FIX`."
    return f"# Fixes\n\n{said}\n\n" + table(("fix", "what", "phases", "walls"), rows)


def _page(fix: Fix) -> str:
    text = "\n\n".join(markdown_paragraphs(fix.page))
    claims = "; ".join(_claim(claim) for claim in fix.claims)
    rows = (
        ("phases", ", ".join(fix.phases)),
        ("recovers", claims or "no time: it makes a recipe fit"),
        ("slowdown", percent(fix.slowdown, 0) + ", where it is used to save memory" if fix.slowdown else ""),
        ("paid off", f"in {percent(fix.chance, 0)} of the cases with its wall"),
        ("proof", f"in the next trace: {fix.proof.measure}" if fix.proof else "the setting of the built model"),
    )
    return f"# {fix.name}: {fix.title}\n\n{text}\n\n{facts(rows)}\n"


def _claim(claim: Claim) -> str:
    parts = f" ({', '.join(claim.parts)})" if claim.parts else ""
    return f"{percent(claim.fraction, 0)} of [{claim.wall}](../walls/{claim.wall}.html){parts}: {claim.source}"
