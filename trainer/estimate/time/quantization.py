"""The bytes that each FP8 or FP4 recipe moves per quantized element: rows of `quantization.csv`, with their sources."""

from __future__ import annotations

from functools import cache

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.state import BF16_BYTES, MOST_COPIES
from trainer.recipe.tables import read_table


def quantized_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes read and written per quantized element, [N]; 0 in precisions that do not quantize.

    A recipe with one scale for a tensor, without `copies` in its row, writes as many copies as the GPU's products need.
    """
    of_gpu = float(candidates.base.hardware.fp8_copies or MOST_COPIES)

    def moved(precision: str) -> float:
        row = _rows().get(precision)
        if row is None:
            return 0.0
        copies = float(row["copies"]) if row["copies"] else of_gpu
        return BF16_BYTES * float(row["reads"]) + copies * float(row["copy_bytes"])

    return candidates.column("precision").each(moved)


@cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["precision"]: row for row in read_table("quantization.csv", package="trainer.estimate.time")}
