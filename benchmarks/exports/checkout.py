"""Unpacks one version of a Megatron-LM checkout that the user names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

VARIABLE = "MEGATRON_LM"
NEEDED = ("megatron",)


def checkout() -> Path | None:
    """Returns the folder that MEGATRON_LM names: a git repository, bare or not, or an unpacked tree; None if it is
    unset."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def checkout_or_exit() -> Path:
    found = checkout()
    if found is not None and found.is_dir():
        return found
    what = "a checkout of NVIDIA/Megatron-LM: a git repository with its tags, or one version unpacked"
    print(f"set {VARIABLE} to {what}", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def tree_of(folder: Path, version: str) -> Iterator[Path]:
    """Yields a folder with that version's package. Raises ValueError if an unpacked tree is of another version."""
    if not _is_repository(folder):
        found = _version_of_tree(folder)
        if found != version:
            raise ValueError(f"{folder} holds {found}, not {version}: name a git repository with tags")
        yield folder.resolve()
        return
    with TemporaryDirectory(prefix="megatron-lm-") as place:
        archive = subprocess.Popen(
            ["git", "-C", str(folder), "archive", revision(version), *NEEDED], stdout=subprocess.PIPE
        )
        with tarfile.open(fileobj=archive.stdout, mode="r|") as packed:
            packed.extractall(place, filter="data")
        if archive.wait() != 0:
            raise ValueError(f"{folder} has no {revision(version)}")
        yield Path(place)


def revision(version: str) -> str:
    """Returns git's revision: "0.16.1" -> "core_v0.16.1", "0.17" -> "core_v0.17.0", "head" -> "HEAD"."""
    if version == "head":
        return "HEAD"
    return f"core_v{version}" if version.count(".") == 2 else f"core_v{version}.0"


def versions_there(folder: Path, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the wanted versions; of an unpacked tree, which has one version, that one."""
    return wanted if _is_repository(folder) else (_version_of_tree(folder),)


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or (folder / "HEAD").is_file()


def _version_of_tree(folder: Path) -> str:
    text = (folder / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    numbers = [re.search(rf"{part} = (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(found[1] for found in numbers if found)
