"""Valid names of recipes: a study's folder has the recipe's name, so it must be a valid folder name."""

from __future__ import annotations

import json
import unicodedata

SEPARATORS = "/\\"
UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # Unicode's categories of control characters, lone surrogates and line breaks
MAX_BYTES = 200  # file systems allow 255 bytes for a folder's name, and a number is appended
UNNAMED = "recipe"


def name_problem(name: str) -> str | None:
    """Returns the reason why `name` is not a valid recipe name; None if it is."""
    if not name.strip():
        return "the name is empty"
    if wrong := next((character for character in name if _is_wrong(character)), None):
        return f"the name contains {json.dumps(wrong)[1:-1] if wrong not in SEPARATORS else wrong}"
    if name.startswith("."):
        return "the name begins with a dot"
    size = len(name.encode())
    return f"the name has {size} bytes, {MAX_BYTES} at most" if size > MAX_BYTES else None


def safe_name(text: str) -> str:
    """Returns the valid recipe name nearest to a text, such as a file name."""
    name = "".join("-" if _is_wrong(character) else character for character in text).lstrip(".")
    cut = name.encode()[:MAX_BYTES].decode(errors="ignore")
    return cut if cut.strip() else UNNAMED


def _is_wrong(character: str) -> bool:
    return character in SEPARATORS or unicodedata.category(character) in UNSEEN
