"""Huber's loss in SciPy's form: residuals far off count by their distance, so that one bad measurement has little
influence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.constants import constant
from trainer.estimate.candidates import Floats

HUBER_DELTA = constant("huber_delta")


def huber_loss(count: int) -> Callable[[Floats], Floats]:
    """Returns Huber's loss for the first `count` residuals and squares for the priors behind them, in SciPy's form
    (value, slope, curvature)."""

    def loss(squares: Floats) -> Floats:
        inside = (squares <= HUBER_DELTA**2) | (np.arange(len(squares)) >= count)
        root = np.sqrt(np.maximum(squares, 1e-12))
        value = np.where(inside, squares, 2 * HUBER_DELTA * root - HUBER_DELTA**2)
        slope = np.where(inside, 1.0, HUBER_DELTA / root)
        return np.stack([value, slope, np.where(inside, 0.0, -0.5 * HUBER_DELTA / root**3)])

    return loss
