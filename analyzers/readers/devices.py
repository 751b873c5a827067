"""Which devices a process worked on: the ones it ran kernels on, whatever other ones its copies touched."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from analyzers.intervals import Bools
from analyzers.timeline import Activity, Ints


def by_device(activity: npt.NDArray[np.integer], device: Ints) -> Iterable[tuple[int, Bools]]:
    """Each device that ran kernels, and its events, bool[N]; copies seen on other ones (peer to peer) go with the
    first of them. activity, device: whole numbers[N]."""
    own = np.unique(device[activity != Activity.COPY])
    if not len(own):
        own = np.unique(device)[:1]
    strangers = ~np.isin(device, own)
    for index in own.tolist():
        yield index, (device == index) | (strangers if index == own[0] else False)
