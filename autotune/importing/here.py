"""Reads from this machine what the file of a training job lacks: the GPU, and the size of the vocabulary."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.launch_scripts.argv import split

SMI_S = 10
_ASKS = (("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"), ("rocm-smi", "--showproductname"))
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
_MODEL = r"[a-z]+\d+\w*"  # h100, mi300x
MAX_BYTES = 256 << 20
GIB = 2**30


def gpu_here(known: Mapping[str, object]) -> str | None:
    """Returns the GPU of this machine; None if it has none, several kinds, or one that the table does not have."""
    for words in _ASKS:
        names = set(re.findall(_MODEL, _output_of(words).lower()))
        found = [name for name in known if name in names]
        if len(found) == 1:
            return found[0]
    return None


def amd_gpu_here() -> dict[str, Any] | None:
    """Returns name, vendor and memory in GiB of this machine's GPU by rocm-smi.

    None if rocm-smi is missing, or sees no GPU or several kinds.
    """
    with suppress(ValueError, AttributeError, KeyError, TypeError):
        cards = [card for name, card in json.loads(_output_of(_AMD)).items() if name.startswith("card")]
        fields = [{key.lower(): value for key, value in card.items()} for card in cards]
        seen = {(each["card series"], int(each["vram total memory (b)"])) for each in fields}
        if len(seen) == 1:
            series, memory = seen.pop()
            name = re.search(_MODEL, series.lower())
            return {"name": name[0], "vendor": "amd", "memory_gib": round(memory / GIB, 2)} if name else None
    return None


def _output_of(words: Sequence[str]) -> str:
    """Returns the output of a program; empty if the program is missing or fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, text=True, timeout=SMI_S, check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""


def vocabulary_here(argv: Sequence[str], flags: Collection[str], folder: str) -> tuple[int, str] | None:
    """Returns the number of tokens and the tokenizer file that one of these `flags` names; None if no such file can be
    read on this machine."""
    for each in split(argv):
        if each.flag in flags and each.values:
            for file in _files(Path(folder, each.values[0])):
                with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
                    if file.stat().st_size <= MAX_BYTES and (count := _tokens(file)):
                        return count, str(file)
    return None


def _files(path: Path) -> Iterator[Path]:
    names = ("config.json", "tokenizer.json", "tokenizer.model", "vocab.json")
    yield from (path / name for name in names if (path / name).is_file()) if path.is_dir() else (path,)


def _tokens(file: Path) -> int:
    """Counts the tokens of a Hugging Face configuration or tokenizer, a JSON vocabulary, or a sentencepiece model."""
    if file.suffix != ".json":
        return _pieces(file.read_bytes())
    data = json.loads(file.read_text(encoding="utf-8"))
    if file.name == "config.json":
        return int(data.get("text_config", data)["vocab_size"])
    if "model" in data and "vocab" in data["model"]:
        added = [token["id"] for token in data.get("added_tokens", [])]
        return int(max([len(data["model"]["vocab"]), *(number + 1 for number in added)]))
    return len(data)


def _pieces(data: bytes) -> int:
    """Counts the pieces of a sentencepiece model: a protobuf message in which each piece is one entry of field 1.

    Returns 0 for other data.
    """
    at = count = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 != 2:
            return 0
        length, at = _varint(data, at)
        count, at = count + (key >> 3 == 1), at + length
    return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
