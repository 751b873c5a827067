"""Reads the warnings and errors that nsys recorded about a capture, above all lost events.

nsys warns about every process of the tree (a shell runs no CUDA) and every interface that it can trace. Of those about
the analysed processes, the ones on the tables that are read are shown and others only counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from analyzers.readers.nsys_export import Export
from analyzers.readers.nsys_processes import PROCESS_BITS, PROCESS_SHIFT

TABLE = "DIAGNOSTIC_EVENT"
WARNING = 2  # severity: 1 information, 2 warning, 3 error
CONCERNS = re.compile(r"\b(CUDA|NVTX|CUPTI|GPU|lost|dropped|buffer|memory|disk|timestamp)", re.IGNORECASE)
SHOWN = 6
SHOWN_CHARACTERS = 240


def diagnostics(export: Export, processes: Collection[int]) -> list[str]:
    """Returns the first SHOWN warnings and errors on CONCERNS, each once, about these processes (globalPid >> 24) or
    about no particular one, and a line that counts the others about them."""
    if not export.has(TABLE, "severity", "text", "globalPid"):
        return []
    where = f"severity >= {WARNING}"
    (pids,) = export.integers(TABLE, ("globalPid",), where)
    texts = export.texts(TABLE, "text", where)
    messages = [
        " ".join(text.split())
        for process, text in zip((pids >> PROCESS_SHIFT).tolist(), texts, strict=True)
        if text and (process in processes or not process & PROCESS_BITS)
    ]
    concerning = [text for text in dict.fromkeys(messages) if CONCERNS.search(text)]
    more = len(set(messages)) - len(concerning[:SHOWN])
    rest = [f"nsys: {more} other warnings, in table {TABLE}"] if more else []
    return [*(f"nsys: {text[:SHOWN_CHARACTERS]}" for text in concerning[:SHOWN]), *rest]
