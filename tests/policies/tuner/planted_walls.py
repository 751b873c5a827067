"""Recipes with one planted wall each on machines where nothing else costs much; layouts are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analyzers.diagnosis import Wall
from policies.trial import PHASES, Proposal
from tests.policies.drawn import cpu_recipe, gpu_recipe, tuned_by
from tests.policies.tuned import Run
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.machine import Compute, Host, Links, Machine, Memory
from trainer.recipe.rules.examples import FULL

LAYOUT = tuple(name for name, knob in KNOBS.items() if knob.section == "parallelism")
ROOMY = Memory(activations=0.5)
FAST_LINKS = Links(nvlink=50.0, network=50.0, latency=0.05)
FAST_HOST = Host(launch=0.1)
FULL_RATE = Compute(half_rows=0.01, half_width=0.01)
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)}
EP8 = {"expert_model_parallel_size": 8, **SELECTIVE}
# Everything else that a person would switch on
TUNED: dict[str, Any] = {
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
    "moe_permute_fusion": True,
    "moe_router_fusion": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "manual_gc": True,
    "manual_gc_interval": 100,
    "cpu_affinity": "spread",
}
OVERLAPS_OFF = dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather", "overlap_moe_expert_parallel_comm"), False)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One wall by itself, and the fixes that answer it."""

    wall: Wall
    knobs: Mapping[str, Any]
    machine: Machine
    fixes: frozenset[str]
    on_cpus: bool = False
    named: bool = True  # true if the diagnosis names the wall; compute below its peak may cost as much
    frozen: tuple[str, ...] = field(default=LAYOUT)

    @property
    def recipe(self) -> Recipe:
        drawn = cpu_recipe(self.knobs) if self.on_cpus else gpu_recipe(self.knobs)
        return tuned_by(drawn, freeze=tuple(dict.fromkeys((*drawn.tune.freeze, *self.frozen))))


def fixes(*names: str) -> frozenset[str]:
    return frozenset(names)


PLANTED: dict[str, Planted] = {
    "memory: everything is recomputed with room": Planted(
        wall=Wall.MEMORY,
        knobs=TUNED | FULL,
        machine=Machine(links=FAST_LINKS, host=FAST_HOST, compute=FULL_RATE, memory=ROOMY),
        fixes=fixes("drop_recompute"),
        named=False,
    ),
    "communication: experts over a slow network": Planted(
        wall=Wall.COMMUNICATION,
        knobs=OVERLAPS_OFF,
        machine=Machine(host=Host(launch=0.2), links=Links(network=0.5), memory=ROOMY),
        fixes=fixes("overlap_expert_communication", "dispatcher"),
    ),
    "host: tiny micro batches and expensive launches": Planted(
        wall=Wall.HOST,
        knobs=EP8,
        machine=Machine(host=Host(launch=8.0), memory=ROOMY, links=FAST_LINKS),
        fixes=fixes("micro_batch_up", "cuda_graphs"),
    ),
    "compute: experts one after the other": Planted(
        wall=Wall.COMPUTE,
        knobs=EP8 | {"moe_grouped_gemm": False},
        machine=Machine(host=Host(launch=0.02), memory=ROOMY, links=FAST_LINKS),
        fixes=fixes("grouped_gemm", "micro_batch_up"),
    ),
}
MORE: dict[str, Planted] = {
    "memory: CPU ranks recompute everything": Planted(
        wall=Wall.MEMORY, knobs=FULL, machine=Machine(), fixes=fixes("drop_recompute"), on_cpus=True
    ),
    "communication: experts across nodes with tiny micro batches": Planted(
        wall=Wall.COMMUNICATION,
        knobs=OVERLAPS_OFF | {"micro_batch_size": 2},
        machine=Machine(host=Host(launch=0.2), links=Links(network=0.25), memory=ROOMY),
        fixes=fixes("overlap_expert_communication", "dispatcher"),
    ),
}


def largest(proposal: Proposal) -> str:
    """Returns the fix of the largest predicted share."""
    return max(proposal.fixes, key=lambda share: share.predicted_share or 0.0).fix


def first_proposals(run: Run, wanted: frozenset[str], most: int = 2) -> list[Proposal]:
    """Returns at most `most` proposals, ending with the first whose largest predicted share is a wanted fix's; runs all
    but the last."""
    found: list[Proposal] = []
    while len(found) < most and not (found and largest(found[-1]) in wanted):
        if found:
            run.attempt(found[-1])
        proposal = next((each for phase in PHASES if (each := run.propose(phase))), None)
        if proposal is None:
            break
        found.append(proposal)
    return found
