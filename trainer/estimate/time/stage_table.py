"""The step by pipeline rank, and how much ranks on shared CPU cores slow each other.

Shapes: N candidates, P pipeline ranks; seconds per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Floats, Integers, most_of_ranks
from trainer.estimate.time.constants import Constants

EXPOSED = ("ep_exposed", "tp_exposed", "cp_exposed")  # exposed communication inside a stage's work
SENT = (*EXPOSED, "ep", "tp", "cp", "pp", "pp_exposed", "dp", "dp_exposed")
ONCE = ("pp", "pp_exposed", "dp", "dp_exposed", "optimizer", "offload", "offload_exposed", "gc")
TINY_S = 1e-12


class LazyParts(Mapping[str, Floats]):
    """Seconds by part, each computed when it is read: most readers of a table need only its steps."""

    def __init__(self, names: Iterable[str], part: Callable[[str], Floats]) -> None:
        self._names, self._part = tuple(names), part

    def __getitem__(self, name: str) -> Floats:
        if name not in self._names:
            raise KeyError(name)
        return self._part(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """Seconds per step of every pipeline rank, [N, P]: what a trace of one of its ranks should show.

    `parts` are LAYER_PARTS, head, loss and host (without its work once per step); `busy` is all work of the stage.
    Work once per step is the same on all ranks, [N]. `stretch` is how much slower CPU ranks are than alone on their
    cores, `links_stretch` the same for communication between them; 1 on GPUs. K sets of constants add a first axis K.
    """

    parts: Mapping[str, Floats]
    busy: Floats
    pp: Floats
    pp_exposed: Floats
    pp_bubble: Floats
    dp: Floats
    dp_exposed: Floats
    optimizer: Floats  # optimizer step on the device
    offload: Floats  # offload of the optimizer: copies and the host's step
    offload_exposed: Floats
    fixed: float | Floats  # host work once per step
    gc: Floats  # garbage collection
    step: Floats
    stretch: float | Floats
    links_stretch: float | Floats

    @property
    def slowest(self) -> Integers:
        """Returns the pipeline rank with most work, [N]."""
        result: Integers = np.argmax(self.busy, axis=-1)
        return result

    @property
    def work(self) -> Floats:
        """Returns the seconds per step without the time that ranks wait for each other, [N]."""
        longest = most_of_ranks(self.busy) + self.pp_exposed + self.pp_bubble
        once = self.dp_exposed + self.optimizer + self.offload_exposed + self.fixed + self.gc
        seconds: Floats = longest + once
        return seconds


def stretched(table: StageTable, candidates: Candidates, values: Constants) -> StageTable:
    """Returns the table scaled by `cpu_stretch`, the slowdown of CPU ranks that share cores with others.

    With one rank per node, communication is bound by the network, and only its share of CPU time (`cpu_moved`) is
    scaled.
    """
    stretch = links = values["cpu_stretch"]
    if candidates.base.cluster.gpus_per_node == 1:
        links = 1 + values["cpu_moved"] * (stretch - 1)
    by_rank = {True: np.asarray(links)[..., None], False: np.asarray(stretch)[..., None]}  # True: parts that are sent
    sent = sum((table.parts[name] for name in EXPOSED), np.zeros(()))
    busy = table.busy * by_rank[False] - sent * (by_rank[False] - by_rank[True])
    slower: dict[str, Any] = {
        "parts": LazyParts(table.parts, lambda name: table.parts[name] * by_rank[name in SENT]),
        "busy": busy,
        "pp_bubble": table.pp_bubble * most_of_ranks(busy) / np.maximum(most_of_ranks(table.busy), TINY_S),
        "fixed": table.fixed * stretch,
        **{name: getattr(table, name) * (links if name in SENT else stretch) for name in ONCE},
    }
    found = replace(table, **slower, stretch=stretch, links_stretch=links)
    return replace(found, step=table.step * found.work / table.work)
