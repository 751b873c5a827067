"""Finds the rank of a trace in its file name, for traces that do not record it."""

from __future__ import annotations

import re
from pathlib import Path

# rank0.pt.trace.json.gz, trace_8_rank_1.json, rank-0.Apr_03.json, sampled_rank_12.sqlite
_RANK = re.compile(r"rank[_\-]?(\d+)", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    found = _RANK.findall(path.name)
    return int(found[-1]) if found else None
