"""Releases of Megatron-Core as specifiers of `packaging`, and their names on pages.

Only `>=` and `<` of two-part versions are used, for a rule that holds from one minor release on, or between two; and
`>=` of a three-part one where a patch release brought it.
"""

from __future__ import annotations

from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

NEWEST = "head"
EVERY_RELEASE = SpecifierSet()
EVERY_RELEASE_WORD = "all"
_HEAD = Version("1!0")  # an epoch above that of every release


def plain_release(text: str) -> str:
    """Returns a release as rules compare it: "0.17.0" of "core_v0.17.0" and "v0.17.0", "head" of "main" and "dev"."""
    plain = text.lower().removeprefix("core_").removeprefix("v")
    return NEWEST if plain in (NEWEST, "main", "dev") else plain


@cache
def is_among(releases: SpecifierSet, version: str) -> bool:
    """Returns True if the version ("0.16.1", "head") is one of the releases; a release candidate counts as its
    release."""
    known = _HEAD if version == NEWEST else Version(Version(version).base_version)
    return known in releases


@cache
def releases_text(releases: SpecifierSet) -> str:
    """Names the releases: "all", "0.18", "0.16 and 0.17", "0.16 to 0.18", "0.18 and later"."""
    bounds = {each.operator: Version(each.version) for each in releases}
    if not bounds:
        return EVERY_RELEASE_WORD
    first = bounds[">="]
    if "<" not in bounds:
        return f"{first} and later"
    last = Version(f"{first.major}.{bounds['<'].minor - 1}")
    if last == first:
        return str(first)
    return f"{first} {'and' if last.minor == first.minor + 1 else 'to'} {last}"
