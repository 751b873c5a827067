"""Assigns events to devices.

A process works on the devices on which it ran kernels, not on others that its copies touched.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from analyzers.intervals import Bools
from analyzers.timeline import Activity, Ints


def by_device(activity: npt.NDArray[np.integer], device: Ints) -> Iterable[tuple[int, Bools]]:
    """Yields each device that ran kernels (if none did, the first one), with a mask of its events, bool[N].

    Copies recorded on other devices (peer to peer) are assigned to the first one. activity, device: integers[N].
    """
    own = np.unique(device[activity != Activity.COPY])
    if not len(own):
        own = np.unique(device)[:1]
    elsewhere = ~np.isin(device, own)
    for index in own.tolist():
        yield index, (device == index) | (elsewhere if index == own[0] else False)
