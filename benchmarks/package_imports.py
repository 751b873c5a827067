"""Counts the modules and folders directly in each package, and the pairs of which the first imports the second.

    python -m benchmarks.package_imports

`lint-imports` checks that none of them form a cycle.
"""

from __future__ import annotations

import grimp

from autotune.doctor.installation import PACKAGES

SHOWN = ("autotune", "policies", "trainer", "trainer.recipe", "trainer.estimate", "trainer.frameworks", "analyzers")


def main() -> None:
    graph = grimp.build_graph(*PACKAGES)
    for parent in SHOWN:
        children = sorted(graph.find_children(parent))
        pairs = {
            (one, other)
            for one in children
            for other in children
            if one != other and graph.direct_import_exists(importer=one, imported=other, as_packages=True)
        }
        print(f"{parent:18} {len(children):3} modules and folders, {len(pairs):3} imports between them")


if __name__ == "__main__":
    main()
