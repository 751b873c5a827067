"""How many rooms the packages have, and how many pairs of rooms import one another.

    python -m benchmarks.rooms

A room is a module or folder directly in a package. `lint-imports` holds that none stand in a circle.
"""

from __future__ import annotations

import grimp

from autotune.doctor.installation import PACKAGES

SHOWN = ("autotune", "policies", "trainer", "trainer.recipe", "trainer.estimate", "trainer.frameworks", "analyzers")


def main() -> None:
    graph = grimp.build_graph(*PACKAGES)
    for parent in SHOWN:
        rooms = sorted(graph.find_children(parent))
        pairs = {
            (one, other)
            for one in rooms
            for other in rooms
            if one != other and graph.direct_import_exists(importer=one, imported=other, as_packages=True)
        }
        print(f"{parent:18} {len(rooms):3} rooms, {len(pairs):3} imports between them")


if __name__ == "__main__":
    main()
