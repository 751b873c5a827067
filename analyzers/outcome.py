"""Reads the figures that a diagnosis needs from a burst's `outcome.json` next to the traces.

Other fields are ignored; memory is GiB (2**30 bytes).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from analyzers.errors import TraceError

FILE_NAME = "outcome.json"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    phase: str | None = None
    rank: int | None = None
    evidence: str = ""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    failure: Failure | None = None
    peak_gib: list[float] = []  # per rank
    limit_gib: float | None = None  # the same for every rank
    model_tflops_per_gpu: float | None = None
    attainable_tflops_per_gpu: float | None = None

    @property
    def attained(self) -> float | None:
        """Returns the model's FLOP/s divided by the rate that the device's GEMMs attain, 0..1; None if either is
        unknown."""
        if not self.model_tflops_per_gpu or not self.attainable_tflops_per_gpu:
            return None
        return self.model_tflops_per_gpu / self.attainable_tflops_per_gpu

    @property
    def hottest(self) -> tuple[int, float] | None:
        """Returns the rank with the highest peak of memory, and that peak in GiB; None if no peak is known."""
        return max(enumerate(self.peak_gib), key=lambda item: item[1]) if self.peak_gib else None


def read_outcome(folder: Path) -> RunOutcome | None:
    """Reads the outcome in a run folder; returns None if it has none.

    Raises: TraceError: the file is not an outcome.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunOutcome)
    except (OSError, msgspec.DecodeError) as error:
        raise TraceError(path, f"is not an outcome: {error}", hint="delete it to diagnose the traces alone") from None
