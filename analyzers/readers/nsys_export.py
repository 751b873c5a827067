"""Opens one Nsight export: its tables, its columns as arrays, its strings as names.

Reading millions of rows is limited by the CPU, since SQLite gives Python one tuple per row. Here SQLite prints each
column of a page of rows as one text (`group_concat`) and NumPy parses it, which takes half the time of fetching tuples
and a thirtieth of their memory. SQLite releases Python's lock, so that two threads read two pages at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.errors import TraceError
from analyzers.readers.columns import Codes
from analyzers.timeline import Ints

READERS = 2
MISSING = -1  # for NULL and for columns that a version lacks
ROWS_AT_ONCE = 50_000
IDS_AT_ONCE = 1_000
HEADER_BYTES = 100
WAL_FORMAT = 2  # file format of a database with a write-ahead log
OWN_TABLES = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS")


class Export:
    """An open export. columns: the columns of each of its tables; threads: one per connection."""

    def __init__(self, *, path: Path, connections: Sequence[sqlite3.Connection], threads: Executor) -> None:
        self.path = path
        self.connection = connections[0]
        self._threads = threads
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        for connection in connections:
            # dates in META_DATA_EXPORT are localised and not always UTF-8
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._idle.put(connection)
        tables = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.columns = {
            table: {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')} for (table,) in tables
        }
        if not any(table in self.columns for table in OWN_TABLES):
            raise TraceError(
                path,
                "is an SQLite database, but not an Nsight Systems export",
                hint="make one with: nsys export --type sqlite REPORT.nsys-rep",
            )
        self._codes = Codes()

    @property
    def names(self) -> tuple[str, ...]:
        """Returns every name that has a code, in the order of the codes."""
        return tuple(str(name) for name in self._codes)

    def code(self, name: str) -> int:
        return self._codes[name]

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self.columns.get(table, set()) and table in self.columns

    def integers(self, table: str, columns: Sequence[str], where: str = "1") -> list[Ints]:
        """Returns an int64[N] per column, in the order of rows. Columns that this version lacks, and NULLs, are -1.

        Raises: sqlite3.Error: the file is damaged.
        """
        there = [c for c in columns if self.has(table, c)]
        packed = "".join(f', group_concat(CAST(COALESCE("{c}", {MISSING}) AS INTEGER))' for c in there)
        query = f'SELECT count(*){packed} FROM "{table}" WHERE rowid >= ? AND rowid < ? AND {where}'
        first_rows = list(self._first_rows(table))  # before the threads take the connections
        pages = list(self._threads.map(partial(self._page, query), first_rows))
        count = sum(rows for rows, _ in pages)
        found = {c: np.concatenate([page[k] for rows, page in pages if rows] or [_NONE]) for k, c in enumerate(there)}
        missing = np.broadcast_to(np.int64(MISSING), count)  # a broadcast view takes no memory
        return [found.get(c, missing) for c in columns]

    def _first_rows(self, table: str) -> Iterator[int]:
        """Yields the number of the first row of each page; row numbers may have gaps."""
        if table not in self.columns:
            return
        following = f'SELECT min(rowid) FROM "{table}" WHERE rowid >= ?'
        (first,) = self.connection.execute(f'SELECT min(rowid) FROM "{table}"').fetchone()
        while first is not None:
            yield first
            (first,) = self.connection.execute(following, (first + ROWS_AT_ONCE,)).fetchone()

    def _page(self, query: str, first: int) -> tuple[int, list[Ints]]:
        """Returns the number of rows of a page and their columns; (0, []) if the page is empty."""
        connection = self._idle.get()
        try:
            rows, *texts = connection.execute(query, (first, first + ROWS_AT_ONCE)).fetchone()
        finally:
            self._idle.put(connection)
        return rows, [_numbers(text, rows) for text in texts] if rows else []

    def texts(self, table: str, column: str, where: str = "1") -> list[str | None]:
        """Returns a column of text, in the order of rows, None for NULL; empty if this version lacks it."""
        if not self.has(table, column):
            return []
        rows = self.connection.execute(f'SELECT "{column}" FROM "{table}" WHERE {where} ORDER BY rowid')
        return [None if text is None else str(text) for (text,) in rows]

    def codes_of_ids(self, ids: Ints) -> Ints:
        """Returns the codes of names, int32[N], for ids of StringIds, int64[N]; an id without a string has the empty
        name."""
        used = np.unique(ids)
        strings = self._strings(used.tolist())
        codes: npt.NDArray[Any] = np.array([self.code(strings.get(i, "")) for i in used.tolist()], dtype=np.int32)
        return codes[np.searchsorted(used, ids)]

    def _strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Returns the strings of only these ids, since the export of a long run has millions of others."""
        found: dict[int, str] = {}
        for at in range(0, len(ids) if self.has("StringIds", "id", "value") else 0, IDS_AT_ONCE):
            asked = ", ".join(map(str, ids[at : at + IDS_AT_ONCE]))
            found.update(self.connection.execute(f"SELECT id, value FROM StringIds WHERE id IN ({asked})"))
        return found


_NONE = np.empty(0, dtype=np.int64)


def _numbers(text: str, count: int) -> Ints:
    numbers = np.fromstring(text, dtype=np.int64, sep=",")
    if len(numbers) != count:
        raise sqlite3.DataError("a numeric column has other values")
    return numbers


@contextmanager
def opened(path: Path, named: Path) -> Iterator[Export]:
    """Opens the export read-only, without writing next to it; `named` is the path that errors show.

    Raises:
        TraceError: it is damaged, still being written, or something else.
    """
    try:
        with ExitStack() as stack:
            connections = [stack.enter_context(closing(_connect(path, named))) for _ in range(READERS)]
            threads = stack.enter_context(ThreadPoolExecutor(READERS))
            yield Export(path=named, connections=connections, threads=threads)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:  # a message may quote what is damaged
        raise TraceError(
            named, f"is a damaged SQLite file ({error})", hint="export the report again with nsys"
        ) from None


def _connect(path: Path, named: Path) -> sqlite3.Connection:
    """Connects read-only.

    Respects locks where the file system has them; else opens a file without a log as immutable.
    """
    path = path.resolve()  # SQLite's companion files are next to the file, not next to a link to it
    uri = path.as_uri()
    logged = _has_companion(path, "-wal")
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
    _refuse_cut(header, path.stat().st_size, named)
    still = "&immutable=1" if header[18] == WAL_FORMAT and not logged else ""
    connection = sqlite3.connect(f"{uri}?mode=ro{still}", uri=True, timeout=0, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        return connection
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" in str(error):
            raise TraceError(
                named, "is being written by another program", hint="wait until nsys has finished the export"
            ) from None
        if logged or _has_companion(path, "-journal"):
            raise TraceError(
                named,
                f"has unread changes in files next to it ({error})",
                hint="its export was interrupted or is still running: export again, or move all its files to a "
                "writable folder",
            ) from None
        return sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, check_same_thread=False)


def _refuse_cut(header: bytes, size: int, named: Path) -> None:
    """Raises TraceError if the file is truncated, which SQLite would notice only when it reads a missing page."""
    page_bytes = {1: 1 << 16}.get(stored := int.from_bytes(header[16:18]), stored)
    if page_bytes.bit_count() != 1 or header[24:28] != header[92:96]:
        return  # damaged, which SQLite reports, or of a version that does not store the count of pages
    whole = page_bytes * int.from_bytes(header[28:32])
    if size < whole:
        raise TraceError(
            named,
            f"is cut short: {size:,} of {whole:,} bytes are there",
            hint="copy it again, or export the report again with nsys",
        )


def _has_companion(path: Path, suffix: str) -> bool:
    companion = path.with_name(path.name + suffix)
    return companion.exists() and companion.stat().st_size > 0
