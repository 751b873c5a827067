"""Nodes that a study no longer uses, since each failed by itself."""

from __future__ import annotations

import json
from pathlib import Path


def avoided(home: Path) -> list[str]:
    """Returns the nodes that the study avoids, in the order in which they failed."""
    try:
        lines = _path(home).read_text().splitlines()
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(json.loads(line)["node"] for line in lines))


def avoid(home: Path, node: str, why: str) -> None:
    """Avoids the node from now on, in this study and when it is resumed."""
    home.mkdir(parents=True, exist_ok=True)
    with _path(home).open("a") as file:
        file.write(json.dumps({"node": node, "why": why}) + "\n")


def unneeded(avoid: list[str], available: list[str], needed: int) -> list[str]:
    """Returns the nodes in `avoid` that can be left out so that `needed` of the nodes `available` remain; those that
    failed last are left out first."""
    spare = len(available) - needed
    avoidable = [node for node in reversed(avoid) if node in available]
    return avoidable[: max(0, spare)]


def _path(home: Path) -> Path:
    return home / "avoid.jsonl"
