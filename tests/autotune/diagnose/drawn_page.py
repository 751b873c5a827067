"""A trace of two steps, and its page as a browser draws it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.analyzers.drawing import ALL_TO_ALL, GEMM, Drawing

Draw = Callable[..., str]
MAX_BYTES = 2_000_000


def two_steps(folder: Path, name: str = GEMM) -> Path:
    """Writes a trace with a GEMM and an exchange in each of two steps, the second twice as long."""
    drawing = Drawing()
    for number, start in ((1, 0.0), (2, 1000.0)):
        length = 1000.0 * number
        drawing.step(number, start, start + length)
        drawing.operator("aten::mm", start + 5, start + 60)
        drawing.kernel(name, start + 100, start + 0.5 * length, launched=start + 10)
        drawing.kernel(ALL_TO_ALL, start + 0.5 * length, start + 0.9 * length, launched=start + 20, stream=8)
    return drawing.write(folder)


def scripted(page: str, script: str) -> str:
    return page.replace("</body>", f"<script>{script}</script></body>")
