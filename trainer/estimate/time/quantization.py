"""The bytes that each FP8 or FP4 recipe moves per quantized element: rows of `quantization.csv`, with their sources."""

from __future__ import annotations

from functools import cache

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.memory.state import BF16_BYTES, MAX_COPIES
from trainer.recipe.tables import figure, read_table

TABLE, OF_GPU = "quantization.csv", "gpu"


def quantized_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes read and written per quantized element, [N]; 0 in precisions that do not quantize.

    Recipes with one scale per tensor (`gpu` in column `copies`) write as many copies as the GPU's GEMMs need.
    """
    of_gpu = float(candidates.base.hardware.fp8_copies or MAX_COPIES)

    def moved(precision: str) -> float:
        reads, copies, copy_bytes = _recipes().get(precision, (0.0, 0.0, 0.0))
        return BF16_BYTES * reads + (of_gpu if copies is None else copies) * copy_bytes

    return candidates.column("precision").each(moved)


@cache
def _recipes() -> dict[str, tuple[float, float | None, float]]:
    """Returns {precision: (reads of a tensor, copies written, bytes of a copy's element)}."""
    return {
        row["precision"]: (
            figure(row, "reads", table=TABLE),
            None if row["copies"] == OF_GPU else figure(row, "copies", table=TABLE),
            figure(row, "copy_bytes", table=TABLE),
        )
        for row in read_table(TABLE, package="trainer.estimate.time")
    }
