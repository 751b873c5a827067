"""Makes strict JSON from the almost valid JSON that some profilers and tools write.

Only pieces that cannot be decoded are passed here. Names may lose invalid characters; times and structure do not
change.
"""

from __future__ import annotations

import re

_CONTROL = bytes(range(0x20))
# control characters become spaces, as which JSON reads them between values
_TO_SPACES = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_TRAILING_COMMA = re.compile(rb",(?=\s*[}\]])")
_NO_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)[-+]?(?:NaN|nan|Infinity|inf|1e999)(?=\s*[,}\]])")
# whole escapes first, surrogate pairs before halves, so that only what is wrong is left for the last two
_ESCAPE = re.compile(
    rb'(\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\"
)


def repaired(text: bytes) -> bytes:
    """Returns the text as valid UTF-8 without raw control characters, NaN, trailing commas and invalid escapes."""
    text = text.decode("utf-8", "replace").encode().translate(_TO_SPACES)
    text = _ESCAPE.sub(_escape, text) if b"\\" in text else text
    return _TRAILING_COMMA.sub(b"", _NO_NUMBER.sub(rb"\1null", text))


def _escape(found: re.Match[bytes]) -> bytes:
    whole, half = found.groups()
    return whole or (rb"\ufffd" if half else rb"\\")
