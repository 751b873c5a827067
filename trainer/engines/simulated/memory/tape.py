"""One layer as a tape of operations, simulated forward and backward as autograd runs it: the bytes alive at each
moment.

A tensor lives until its last reader is done, or longer if an operation saves it for backward. Recomputed tensors are
freed after their last reader; all tensors of a module come back when backward first needs one of them. Offloaded
tensors are freed at the end of the layer; those of CUDA graphs belong to the graph and are counted separately.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Modules:
    """The modules that can recompute a saved tensor, move it to the host, or capture it in a CUDA graph, in the words
    of `recompute_modules`, `offload_modules` and `cuda_graph_scope`."""

    recompute: tuple[str, ...] = ()
    offload: str = ""
    graph: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """A tensor of the tape; `size` and `grad` in bytes."""

    size: float
    grad: float = 0.0
    modules: Modules = Modules()


NOTHING = Tensor(0.0)


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operation of the tape.

    `forward`, `backward`: bytes that it needs besides its tensors while it runs. `through`: the gradient of its output
    is that of its last read too, as in an addition. `linear`: it has a weight gradient, which can be delayed. `remote`:
    it exchanges tokens with other ranks.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    saves: tuple[str, ...] = ()
    forward: float = 0.0
    backward: float = 0.0
    through: bool = False
    linear: bool = False
    remote: bool = False


@dataclass(kw_only=True)
class Tape:
    """The operations of a layer in order. The first tensor is its input, the last one written its output."""

    first: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def tensor(self, name: str, tensor: Tensor) -> str:
        self.tensors[name] = tensor
        return name

    def op(self, op: Op) -> None:
        self.ops.append(op)

    @property
    def last(self) -> str:
        return self.ops[-1].writes[0]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A recipe's treatment of saved tensors: the modules whose tensors are recomputed, offloaded or captured; whether
    weight gradients are `delayed` to the end of the layer, and whether exchanged tensors are freed `late`, there."""

    recomputed: frozenset[str] = frozenset()
    offloaded: frozenset[str] = frozenset()
    captured: frozenset[str] = frozenset()
    delayed: bool = False
    late: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """Bytes of a layer above those alive before its input: peaks of its forward and backward pass, kept for backward on
    the device, captured in CUDA graphs, moved to the host. `groups`: the bytes of each offloaded module;
    `attention_kept`: the part of `kept` that belongs to attention."""

    forward: float
    backward: float
    kept: float
    left_over: float = 0.0  # bytes left after both passes, without the gradient of its input; 0 if all is freed
    captured: float = 0.0
    moved: float = 0.0
    groups: tuple[float, ...] = ()
    entered: float = 0.0  # bytes of its input
    gradient: float = 0.0  # bytes of the gradient of its output
    attention_kept: float = 0.0


def simulate_layer(tape: Tape, policy: Policy) -> LayerMemory:
    saved = {name for op in tape.ops for name in op.saves}
    owned = {name for name in saved if policy.captured.intersection(tape.tensors[name].modules.graph)}
    dropped = {name for name in saved if policy.recomputed.intersection(tape.tensors[name].modules.recompute)}
    moved = {name for name in saved - dropped - owned if tape.tensors[name].modules.offload in policy.offloaded}
    kept = saved - owned - dropped - moved
    together = {name: _module(tape.tensors[name], policy) for name in (dropped - owned) | moved}
    groups = _groups(tape, moved)
    forward, after = _forward(tape, kept | moved, owned, late=policy.late)
    backward, left = _backward(tape, kept, together, delayed=policy.delayed)
    first, last = tape.tensors.get(tape.first, NOTHING), tape.tensors[tape.last]
    return LayerMemory(
        forward=forward,
        backward=backward,
        left_over=(after - _size(tape, kept | moved) - last.size) + (left - first.grad),
        kept=_size(tape, kept),
        captured=_size(tape, owned - dropped),
        moved=_size(tape, moved),
        groups=groups,
        entered=first.size,
        gradient=last.grad,
        attention_kept=_size(tape, [name for name in kept if "attn" in tape.tensors[name].modules.graph]),
    )


def _size(tape: Tape, names: Collection[str]) -> float:
    """Returns the bytes of some tensors; summed exactly, so that the result does not depend on the order of a set
    (PYTHONHASHSEED)."""
    return math.fsum(tape.tensors[name].size for name in names)


def _groups(tape: Tape, moved: Collection[str]) -> tuple[float, ...]:
    modules = sorted({tape.tensors[name].modules.offload for name in moved})
    return tuple(
        _size(tape, [name for name in moved if tape.tensors[name].modules.offload == module]) for module in modules
    )


def _forward(tape: Tape, held: Collection[str], owned: Collection[str], *, late: bool) -> tuple[float, float]:
    """Returns (peak bytes, bytes at the end) of the forward pass.

    `held` tensors stay once allocated; `owned` ones are not counted; `late`: exchanged tensors stay to the end.
    """
    last_use = {name: at for at, op in enumerate(tape.ops) for name in (*op.reads, *op.writes, *op.saves)}
    level = peak = tape.tensors.get(tape.first, NOTHING).size
    alive, waiting = {tape.first} - {""}, 0.0
    for at, op in enumerate(tape.ops):
        fresh = {name for name in (*op.writes, *op.saves) if name not in owned} - alive
        alive |= fresh
        level += _size(tape, fresh)
        peak = max(peak, level + op.forward)
        over = {name for name in alive if last_use[name] == at and name not in held and name != tape.last}
        alive -= over
        freed = _size(tape, over)
        level -= 0.0 if late and op.remote else freed
        waiting += freed if late and op.remote else 0.0
    return peak, level - waiting


def _backward(tape: Tape, kept: Collection[str], together: Mapping[str, str], *, delayed: bool) -> tuple[float, float]:
    """Returns (peak bytes, bytes at the end) of the backward pass, which starts from `kept` and the output's gradient.

    `together`: the module of each tensor that must come back first.
    """
    first_use = {name: at for at, op in reversed(list(enumerate(tape.ops))) for name in op.saves}
    alive, gradients, waiting = set(kept), {tape.last}, 0.0
    level = _size(tape, kept) + tape.tensors[tape.last].grad
    peak = level
    for at, op in reversed(list(enumerate(tape.ops))):
        needed = {together[name] for name in op.saves if name in together and name not in alive}
        back = {name for name, module in together.items() if module in needed and first_use[name] <= at} - alive
        alive |= back
        passing = op.reads[-1] if op.through and op.reads[-1] not in gradients else ""
        fresh = [name for name in op.reads if name not in gradients and name != passing]
        again = max((tape.tensors[name].grad for name in op.reads if name in gradients), default=0.0)
        level += _size(tape, back) + sum(tape.tensors[name].grad for name in fresh)
        gradients.update(op.reads)
        peak = max(peak, level + again + op.backward)
        over = {name for name in op.saves if first_use[name] == at} & alive
        alive -= over
        freed = _size(tape, over)
        freed += sum(tape.tensors[name].grad for name in op.writes if name in gradients and not passing)
        level -= 0.0 if delayed and op.linear else freed
        waiting += freed if delayed and op.linear else 0.0
    return peak, level - waiting


def _module(tensor: Tensor, policy: Policy) -> str:
    """Returns the module whose recompute or offload restores a tensor: the first one that the policy names."""
    recomputing = (module for module in tensor.modules.recompute if module in policy.recomputed)
    return next(recomputing, f"offloaded {tensor.modules.offload}")
