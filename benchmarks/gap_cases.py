"""Cases of `benchmarks.gap`: published runs with planted slowdowns, and the log that Megatron-LM would write."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainer.engines.simulated.step import Simulation
from trainer.estimate.gap.losses import FORCED
from trainer.estimate.gap.parts import LINKS, Cause
from trainer.estimate.gap.published import FAST, Published, nearest_published, published_runs
from trainer.estimate.gap.waterfall import Kind
from trainer.frameworks.megatron_lm.arguments import read_arguments
from trainer.frameworks.megatron_lm.framework import FRAMEWORK
from trainer.frameworks.megatron_lm.settle import settled
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.machine import Links, Machine, Routing
from trainer.recipe.rules import FindingKind

MIN_COST = 0.08  # least cost of each planted slowdown, as a fraction of the slowed step
RELEASES = ("26.02", "26.04", "26.06")
SKEW, RATE = (0.6, 1.2), (0.25, 0.6)  # ranges of a router's skew, and of a slow link's share of its rate
TWO, ROUTER, LINK = 2, 3, 4  # kinds of cases, by the seed modulo five
TRIES, TRIES_OF_ONE = 2000, 80
ENDLESS_GIB = 1e5

FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "recompute_modules": None,
}
SETTINGS: tuple[dict[str, Any], ...] = (
    FULL,
    {"recompute_granularity": "selective", "recompute_modules": ("moe", "layernorm")},
    {"moe_token_dispatcher_type": "alltoall"},
    {"moe_token_dispatcher_type": "allgather"},
    {"moe_flex_dispatcher_backend": "deepep"},
    {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False},
    {"cuda_graph_impl": "none", "cuda_graph_scope": None},
    {"moe_grouped_gemm": False},
    {"moe_permute_fusion": False},
    {"overlap_grad_reduce": False, "overlap_param_gather": False},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    {"context_parallel_size": 2},
    {"micro_batch_size": 1},
    {"micro_batch_size": 2},
    {"expert_model_parallel_size": 4},
    {"expert_model_parallel_size": 16},
    {"expert_model_parallel_size": 32},
    {"virtual_pipeline_model_parallel_size": None},
    {"pipeline_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": None},
    {"fp8_param_gather": False},
    {"grad_reduce_in_fp32": True},
    {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0, "use_precision_aware_optimizer": True},
)


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """One planted slowdown and its cost in the simulation, as a fraction of the slowed step."""

    what: str
    cost: float
    knobs: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()

    def is_named(self, kind: Kind, name: str, knobs: Mapping[str, Any]) -> bool:
        """Returns whether a cause of this kind and name, or with these knobs, is this slowdown."""
        return name in self.causes or (kind is Kind.SETTING and bool(self.knobs & knobs.keys()))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Published run with planted slowdowns on a machine. `slowdowns`: the most expensive first."""

    run: Published
    recipe: Recipe
    machine: Machine
    slowdowns: tuple[Slowdown, ...]


def drawn(seed: int) -> Case:
    """Draws a case: of five, two have one bad setting, one has two, one a skewed router and one a slow link."""
    rng = random.Random(f"gap {seed}")
    for at in range(TRIES):
        run = rng.choice(bases())
        if seed % 5 == ROUTER:
            found = _router(rng, run)
        elif seed % 5 == LINK:
            found = _link(rng, run)
        else:  # tries every setting in turn, since few cost enough in any run
            first = SETTINGS[(seed + at // TRIES_OF_ONE) % len(SETTINGS)]
            found = _settings(run, [first, rng.choice(SETTINGS)] if seed % 5 == TWO else [first])
        if found is not None:
            return found
    raise RuntimeError(f"no case for seed {seed}")


@cache
def bases() -> tuple[Published, ...]:
    """Returns published runs of recent releases that break no rule and have at least FAST times the rate of the
    published run that `gap` compares them with, each configuration once."""
    every = {run.recipe.digest(): run for run in published_runs().values() if run.release in RELEASES and run.trusted}
    known = [run for run in every.values() if _is_legal(run.recipe)]
    return tuple(run for run in known if _rate(run) >= FAST * _rate(_compared(run)))


def _rate(run: Published) -> float:
    return run.tokens_per_s_per_gpu


def _compared(run: Published) -> Published:
    nearest = nearest_published(run.recipe)
    assert nearest is not None
    return nearest.run


def _settings(run: Published, changes: Sequence[dict[str, Any]]) -> Case | None:
    together: dict[str, Any] = {}
    for change in changes:
        if together.keys() & change.keys():
            return None
        together |= change
    moved = [{name for name in change if run.recipe.knob(name) != change[name]} for change in changes]
    slowed_recipe = run.recipe.replace(together)
    if not all(moved) or not _is_legal(slowed_recipe):
        return None
    machine = Machine()
    whole = _step_s(slowed_recipe, machine)
    slowdowns = []
    for change, names in zip(changes, moved, strict=True):
        without = slowed_recipe.replace({name: run.recipe.knob(name) for name in change})
        cost = 1 - _step_s(without, machine) / whole
        if cost < MIN_COST:
            return None
        slowdowns.append(Slowdown(what=", ".join(sorted(names)), cost=cost, knobs=frozenset(names)))
    return Case(
        run=run,
        recipe=slowed_recipe,
        machine=machine,
        slowdowns=tuple(sorted(slowdowns, key=lambda each: -each.cost)),
    )


def _router(rng: random.Random, run: Published) -> Case | None:
    recipe = run.recipe.replace({FORCED: False})
    machine = Machine(routing=Routing(skew=round(rng.uniform(*SKEW), 2)))
    cost = 1 - _step_s(run.recipe, machine) / _step_s(recipe, machine)
    if cost < MIN_COST or not _is_legal(recipe):
        return None
    causes = frozenset({str(Cause.ROUTER)})
    return Case(
        run=run,
        recipe=recipe,
        machine=machine,
        slowdowns=(Slowdown(what=f"router, skew {machine.routing.skew}", cost=cost, causes=causes),),
    )


def _link(rng: random.Random, run: Published) -> Case | None:
    name = rng.choice(("network", "nvlink"))
    machine = Machine(links=Links(**{name: round(rng.uniform(*RATE), 2)}))
    cost = 1 - _step_s(run.recipe, Machine()) / _step_s(run.recipe, machine)
    if cost < MIN_COST:
        return None
    what = f"{name} at {getattr(machine.links, name):.0%}"
    causes = frozenset(map(str, LINKS))
    return Case(run=run, recipe=run.recipe, machine=machine, slowdowns=(Slowdown(what=what, cost=cost, causes=causes),))


def on_machine(recipe: Recipe, machine: Machine) -> Recipe:
    """Returns the recipe for the simulation, with unlimited memory: only step time matters."""
    burst = recipe.burst.model_copy(update={"engine": "simulated", "machine": machine, "trace_steps": 2})
    cluster = recipe.cluster.model_copy(update={"memory_gib": ENDLESS_GIB})
    return recipe.model_copy(update={"burst": burst, "cluster": cluster})


def write_log(recipe: Recipe, step_us: list[float], file: Path) -> None:
    """Writes the log of a run of Megatron-LM: its arguments after validation, then the iterations."""
    file.write_text("\n".join([*_arguments(recipe), *_iterations(recipe, step_us), ""]), encoding="utf-8")


def _arguments(recipe: Recipe) -> Iterator[str]:
    argv = FRAMEWORK.rank_command(recipe, None, None).argv
    flags = argv[next(at for at, word in enumerate(argv) if word.startswith("--")) :]
    values = dict(settled(read_arguments(flags).values, world_size=recipe.world_size))
    values |= {"world_size": recipe.world_size, "padded_vocab_size": recipe.architecture.vocab_size}
    yield "------------------------ arguments ------------------------"
    for name in sorted(values):
        yield f"  {name} {'.' * max(2, 48 - len(name))} {values[name]}"
    yield "-------------------- end of arguments ---------------------"


def _iterations(recipe: Recipe, step_us: list[float]) -> Iterator[str]:
    batch = recipe.training.global_batch_size
    for number, us in enumerate(step_us, 1):
        yield (
            f" [2026-11-21 21:21:00.970249] iteration {number:8}/{len(step_us):8} | consumed samples: "
            f"{number * batch:12} | elapsed time per iteration (ms): {us / 1e3:.1f} | learning rate: 3.000000E-04 | "
            f"global batch size: {batch:5} | lm loss: 6.480536E+00 | grad norm: 0.758 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )


def _step_s(recipe: Recipe, machine: Machine) -> float:
    return Simulation(on_machine(recipe, machine), machine).step_us / 1e6


def _is_legal(recipe: Recipe) -> bool:
    return all(finding.kind is not FindingKind.ERROR for finding in findings_of(recipe))
