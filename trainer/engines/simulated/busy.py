"""Busy time of a step by kind of work on each pipeline rank: the sum of its operations, without simulating the step.

It is computed with changed keys of a machine file to find how much each key changes each kind of work. Every expert
rank has the mean load here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from trainer.engines.simulated.ops import Op
from trainer.engines.simulated.parts import Kind
from trainer.engines.simulated.passes import IN_A_ROW
from trainer.engines.simulated.step import ENDS, Simulation
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

WORK = {  # kernel of an operation -> kind of work; of others only the exchanges of EP are counted
    "gemm": "gemm",
    "grouped_gemm": "grouped",
    "attention_forward": "attention",
    "attention_backward": "attention",
    "permute": "permute",
    "router": "permute",
    "preprocess": "permute",
    "quantize": "quantize",
    "norm": "memory_bound",
    "norm_backward": "memory_bound",
    "activation": "memory_bound",
    "activation_backward": "memory_bound",
    "residual": "memory_bound",
    "rope": "memory_bound",
    "embedding": "memory_bound",
    "loss": "memory_bound",
}
EXCHANGES = ("_dispatch", "_combine", "_notify")


def busy_by_rank(recipe: Recipe, machine: Machine) -> tuple[Mapping[str, float], ...]:
    """Returns {kind of work: µs per step} for each pipeline rank, [PP]."""
    simulation = Simulation(recipe, machine)
    return tuple(_busy(simulation, rank) for rank in range(simulation.layout.pp))


def _busy(simulation: Simulation, rank: int) -> dict[str, float]:
    passes = simulation.passes[rank]
    ways = ("merged",) if simulation.schedule.merged else ("forward", "backward")

    @cache
    def of_layer(kind: Kind) -> dict[str, float]:
        ops = [op for way in ways for op in passes.in_a_row(way, kind, 1.0)]
        return {work: us / IN_A_ROW for work, us in _added(ops).items()}

    total: defaultdict[str, float] = defaultdict(float)
    for stage in simulation.stages[rank]:
        kinds = [simulation.kinds[layer] for layer in stage.layers] + [simulation.kinds[-1]] * stage.mtp
        parts = [of_layer(kind) for kind in kinds]
        parts.append({work: ENDS * us for work, us in _added(simulation.ends(stage)).items()})
        for part in parts:
            for work, us in part.items():
                total[work] += us * simulation.schedule.microbatches
    total["optimizer"] = simulation.end.ranks[rank].optimizer_us
    return dict(total)


def _added(ops: Iterable[Op]) -> dict[str, float]:
    """Returns {kind of work: µs} of the operations that are neither recomputed nor communication other than EP's."""
    total: defaultdict[str, float] = defaultdict(float)
    for op in ops:
        work = "ep" if op.kernel.endswith(EXCHANGES) else WORK.get(op.kernel)
        if work is not None and "recompute" not in op.ranges:
            total[work] += op.us
    return total
