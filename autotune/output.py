"""Writes the file that a command was asked for, without losing an existing one.

A file that exists is refused before the work starts, unless it is a page that moe-autotune wrote and a page replaces
it, or `--force` was given. A file that the command reads is never replaced. A file is written whole or not at all.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import BadInputError, Problem

GENERATOR = '<meta name="generator" content="moe-autotune">'  # looks/shell.html.j2 writes it near the top of every page
HEAD_BYTES = 2048
STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))  # their entries are open already: /dev/stdout

NEW_NAME = "name a file in a folder that exists"
WAYS_OUT: dict[int | None, str] = {
    errno.ENOSPC: "free some space, or name a file on another disk",
    errno.EDQUOT: "the disk quota is used up: free some space, or name a file on another disk",
    errno.EROFS: "the file system is read-only: name a file elsewhere",
    errno.EACCES: "name a file that you can write",
    errno.EPERM: "name a file that you can write",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.ENAMETOOLONG: "name a shorter path",
}


@dataclass(frozen=True, kw_only=True)
class Output:
    """One output file.

    None of the `inputs` (files, or folders with all their files) is ever replaced; `force` allows replacing any other
    file, `is_page` only a page that moe-autotune wrote.
    """

    path: Path
    inputs: tuple[Path, ...] = ()
    force: bool = False
    is_page: bool = False

    def check(self) -> None:
        """Raises BadInputError if writing would lose an existing file or cannot succeed."""
        try:
            if not _is_there(self.path):
                _refuse_folder(self.path.resolve().parent)
            elif _is_plain(self.path):
                self._refuse_loss()
        except OSError as error:
            raise self._cannot(error) from None

    def write(self, text: str) -> None:
        """Writes the text; if that fails, the existing file is unchanged. Raises BadInputError."""
        self.check()
        try:
            if _is_there(self.path) and not _is_plain(self.path):  # a pipe or a terminal
                self.path.write_text(text, encoding="utf-8")
            else:
                replace_file(self.path.resolve(), text)
        except OSError as error:
            raise self._cannot(error) from None

    def make(self, write: Callable[[Path], None]) -> None:
        """Calls `write` with a temporary path, then replaces the existing file with the result. Raises
        BadInputError."""
        self.check()
        made = _temporary_path(self.path.resolve())
        try:
            write(made)
            os.replace(made, self.path.resolve())
        except OSError as error:
            raise self._cannot(error) from None
        finally:
            made.unlink(missing_ok=True)

    def _refuse_loss(self) -> None:
        if source := next((source for source in self.inputs if self._is_of(source)), None):
            what = "this command reads it" if source.is_file() else f"it is inside {source}, which this command reads"
            raise self._problem(f"not replaced: {what}", "name another file")
        if not (self.force or (self.is_page and is_our_page(self.path))):
            what = "the file exists" + (" and is not a page that moe-autotune wrote" if self.is_page else "")
            raise self._problem(what, "name another file, or replace it with --force")
        if not os.access(self.path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def _is_of(self, source: Path) -> bool:
        """Returns whether the output is this input or a file in it, links resolved.

        A page that moe-autotune wrote is not counted as a file of a folder.
        """
        if not source.is_dir():
            return source.exists() and self.path.samefile(source)
        return not is_our_page(self.path) and any(self.path.samefile(file) for file in _files_in(source))

    def _cannot(self, error: OSError) -> BadInputError:
        return self._problem(f"it cannot be written: {error.strerror}", WAYS_OUT.get(error.errno, NEW_NAME))

    def _problem(self, what: str, hint: str) -> BadInputError:
        return BadInputError(Problem(where=str(self.path), what=what, hint=hint))


def page_at(path: Path | None, *, inputs: Iterable[Path], force: bool) -> Output | None:
    """Returns the checked output of a page, or None if none was requested. It may replace a page that moe-autotune
    wrote."""
    return None if path is None else _checked(Output(path=path, inputs=tuple(inputs), force=force, is_page=True))


def text_at(path: Path | None, *, inputs: Iterable[Path], force: bool) -> Output | None:
    """Returns the checked output of a text, or None if none was requested. It replaces nothing without `force`: people
    edit texts."""
    return None if path is None else _checked(Output(path=path, inputs=tuple(inputs), force=force))


def is_our_page(path: Path) -> bool:
    """Returns whether moe-autotune wrote the page: the first HEAD_BYTES of the file contain GENERATOR."""
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(HEAD_BYTES)


def replace_file(path: Path, text: str) -> None:
    """Writes the file whole or not at all: a reader never sees a part of it, a full disk leaves the old file.

    Raises OSError that names the path.
    """
    temporary = _temporary_path(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            if path.is_file():
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".moe-autotune-{secrets.token_hex(4)}.tmp")


def _checked(output: Output) -> Output:
    output.check()
    return output


def _is_there(path: Path) -> bool:
    """Returns whether the path exists; False for a dangling symbolic link, whose target will be created."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _is_plain(path: Path) -> bool:
    """Returns True for a regular file, False for a pipe, a terminal or /dev/null; raises IsADirectoryError for a
    folder."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return stat.S_ISREG(mode) and path.parent not in STREAMS


def _refuse_folder(folder: Path) -> None:
    folder.stat()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _files_in(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())
