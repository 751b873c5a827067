"""`python -m docs.site FOLDER`: builds the site and checks its links; exits with 1 if one is dead."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.site.build import build

DEFAULT = Path("build/site")


def main(words: list[str]) -> int:
    folder = Path(words[0]) if words else DEFAULT
    built = build(folder)
    for broken in built.broken:
        print(broken, file=sys.stderr)
    print(f"{built.pages} pages, {built.links} links, {len(built.broken)} of them broken: {folder / 'index.html'}")
    return 1 if built.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
