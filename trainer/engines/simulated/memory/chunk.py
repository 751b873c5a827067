"""Memory of one model chunk of a pipeline rank, layer by layer: full recompute, offload, and two chunks at once.

A chunk is a row of parts, each a layer (or an end of the model) as `tape.py` simulated it. Under EP overlap the forward
pass of one chunk and the backward pass of another run concurrently, one layer of each at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from trainer.engines.simulated.memory.tape import LayerMemory


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """Full recompute: `layers` per checkpoint (uniform), or if `block`, the number of first layers of a chunk with a
    checkpoint each.

    `share`: the fraction of a checkpoint's input that this rank keeps.
    """

    layers: int
    block: bool = False
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Peak bytes while one layer runs, forward and backward, counted from the start of its chunk.

    `attention_kept`: the part of them that attention keeps.
    """

    forward: float
    backward: float
    attention_kept: float


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Bytes of a chunk per micro batch: peaks by layer (`moments`), kept for backward on the device (`kept`), in CUDA
    graphs (`captured`), left after both passes (`left_over`)."""

    moments: tuple[Moment, ...]
    kept: float
    captured: float
    graphs: int  # number of layers with tensors in a graph
    left_over: float

    @cached_property
    def forward(self) -> float:
        return max((moment.forward for moment in self.moments), default=0.0)

    @cached_property
    def backward(self) -> float:
        return max((moment.backward for moment in self.moments), default=0.0)

    def peak_with(self, other: Chunk, *, early: bool) -> float:
        """Returns the peak bytes while this chunk runs forward and `other` runs backward, counted from both starts.

        `early`: attention's tensors of one are freed before those of the other are allocated.
        """
        pairs = zip_longest(self.moments, reversed(other.moments))
        return max((_together(one, two, self.kept, early=early) for one, two in pairs), default=0.0)


def _together(one: Moment | None, two: Moment | None, kept: float, *, early: bool) -> float:
    if one is None:
        return kept + (two.backward if two else 0.0)
    if two is None:
        return one.forward
    return one.forward + two.backward - (min(one.attention_kept, two.attention_kept) if early else 0.0)


def chunk_of(
    layers: Sequence[LayerMemory],
    *,
    before: Sequence[LayerMemory] = (),
    after: Sequence[LayerMemory] = (),
    recompute: Recompute | None = None,
    on_host: int = 0,
    most_in_flight: int | None = None,
) -> Chunk:
    """Simulates the memory of a model chunk.

    `before` and `after` are ends of the model, which are neither recomputed nor offloaded. `on_host`: the number of
    first layers whose tensors are all offloaded. `most_in_flight`: how many modules may be copied at a time; None: all
    of a layer.
    """
    moved = [_on_host(layer) for layer in layers[:on_host]]
    parts = [*before, *moved, *_recomputed(layers[on_host:], recompute), *after]
    moments, level = list[Moment](), 0.0
    for at, part in enumerate(parts):
        leaving = _in_flight(parts[at - 1], most_in_flight) if at else 0.0
        # in backward, the next layer is the previous one of the forward pass
        coming = parts[at - 1].moved if at else 0.0
        moments.append(
            Moment(
                forward=level + leaving + part.forward,
                backward=level + coming + part.backward,
                attention_kept=part.attention_kept,
            )
        )
        level += part.kept
    return Chunk(
        moments=tuple(moments),
        kept=level,
        captured=sum(part.captured for part in parts),
        graphs=sum(part.captured > 0 for part in parts),
        left_over=sum(part.left_over for part in parts),
    )


def _in_flight(part: LayerMemory, most: int | None) -> float:
    """Returns the bytes still being copied to the host when the next layer starts."""
    return sum(part.groups) if most is None else sum(sorted(part.groups, reverse=True)[:most])


def _on_host(layer: LayerMemory) -> LayerMemory:
    """Returns a layer whose kept tensors are all copied to the host while the next layer runs, and back while that runs
    backward."""
    return LayerMemory(
        forward=layer.forward,
        backward=layer.backward,
        kept=0.0,
        moved=layer.kept,
        groups=(layer.kept,),
        entered=layer.entered,
        gradient=layer.gradient,
        left_over=layer.left_over,
    )


def _recomputed(layers: Sequence[LayerMemory], recompute: Recompute | None) -> list[LayerMemory]:
    if recompute is None:
        return list(layers)
    if recompute.block:
        first = [checkpoint([layer], recompute.share) for layer in layers[: recompute.layers]]
        return [*first, *layers[recompute.layers :]]
    size = max(1, recompute.layers)
    return [checkpoint(layers[at : at + size], recompute.share) for at in range(0, len(layers), size)]


def checkpoint(layers: Sequence[LayerMemory], share: float) -> LayerMemory:
    """Returns layers that keep only their input, as one part.

    Backward recomputes the rest while the last layer's gradient is alive.
    """
    whole = chunk_of(layers)
    entered, gradient = layers[0].entered, layers[-1].gradient
    again = max(whole.forward + gradient, whole.backward)
    return LayerMemory(
        forward=max(layer.forward for layer in layers),
        backward=again,
        kept=entered * share,
        entered=entered,
        gradient=gradient,
        left_over=whole.left_over,
    )
