"""The result of `plan`, and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NotRequired, TypedDict

from autotune.estimate.machine import ChosenMachine, UsedMachine, cluster_of
from autotune.looks.quantities import gib, gpu_or_rank, percent, tokens_per_s
from trainer.estimate.learned import LearnedCluster
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.choices import Choice, Missing, choices, missing
from trainer.estimate.plan.familiar import SIZES
from trainer.estimate.plan.feasible import MAX_GPUS, fewest_nodes
from trainer.estimate.plan.search import Search, search
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.rules.rule import Effect, Finding

SCHEMA = 1
BACKEND = "moe_flex_dispatcher_backend"
UNRANKED = "no memory limit is known: everything counts as fitting"


class Layout(TypedDict):
    """One choice: a legal layout with its best settings, its predictions, and the reason it is listed."""

    rank: int  # place in the list, from 1
    changes: dict[str, tuple[Any, Any]]  # from the recipe to the choice: knob → [from, to]
    sizes: dict[str, int]
    data_parallel_size: int
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    step_s: float
    spread: float  # relative half width of the 90 % interval
    peak_gib: float
    upper_gib: float
    outside_gib: float  # GPU memory outside torch's allocator
    fits: bool  # true if it fits by the upper bound
    hottest: dict[str, int]  # pp_rank: the pipeline rank that needs the most memory
    time_by_part: dict[str, float]  # seconds; they add up to the step
    memory_by_part: dict[str, float]  # GiB of the hottest rank
    because: str
    simulated_step_s: NotRequired[float]  # step in a simulation of the machine of --machine


class Excluded(TypedDict):
    by_rule: dict[str, int]  # rule id → number of layouts it forbids
    memory: int  # legal layouts without a setting that fits


class PlanDocument(TypedDict):
    """Document of `plan --json`."""

    schema: int
    limit_gib: float | None
    legal: int  # number of legal layouts
    fitting: int  # number of legal layouts with a setting that fits
    estimated: int  # number of settings estimated
    # the recipe's nodes if a setting fits there, else the fewest found by doubling; null: none
    fewest_nodes: int | None
    layouts: list[Layout]
    excluded: Excluded
    missing: tuple[Missing, ...]  # common layouts, and why they are not listed
    recipe_findings: tuple[Finding, ...]  # errors of the recipe itself
    assumptions: tuple[str, ...]
    file: NotRequired[str | None]  # the file that -o wrote
    machine: NotRequired[UsedMachine]  # the machine of --machine


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A search and its choices.

    `findings`: rules that the given recipe violates; its layout is replaced all the same.
    """

    recipe: Recipe
    found: Search
    choices: tuple[Choice, ...]
    missing: tuple[Missing, ...]
    findings: tuple[Finding, ...]
    fewest_nodes: int | None = None  # fewest nodes on which a setting fits, if none fits on the recipe's nodes
    machine: ChosenMachine | None = None

    @property
    def limit_gib(self) -> float | None:
        return self.found.learned.limit_gib(self.recipe)

    @cached_property
    def simulated_s(self) -> tuple[float, ...]:
        """Returns the step of each choice in a simulation of the machine, seconds; () without a machine."""
        return tuple(self.machine.simulated_step_s(choice.recipe) for choice in self.choices) if self.machine else ()

    @property
    def fitting(self) -> int:
        """Returns the number of layouts that fit with some setting."""
        return len(set(self.found.outlined.layout[self.found.outlined.fits].tolist()))

    @property
    def assumptions(self) -> tuple[str, ...]:
        if not self.choices:
            return ()
        first, learned = self.choices[0].recipe, self.found.learned
        time, memory = estimate_time(first, learned=learned), estimate_memory(first, learned=learned.memory)
        assumptions = (*time.assumptions, *memory.assumptions, *_evidence(first, learned), *_failing(self.choices))
        return (*assumptions, UNRANKED) if self.limit_gib is None else assumptions


def _failing(choices: Sequence[Choice]) -> Iterator[str]:
    """Yields how choices are known to fail in some release; they are listed only because nothing else fits."""
    found = (finding for choice in choices for finding in check(choice.recipe) if finding.effect is Effect.FAILS)
    for finding in {finding.rule: finding for finding in found}.values():
        yield f"nothing else fits, and it fails in Megatron-Core {finding.versions}: {finding.message}"


def _evidence(first: Recipe, learned: LearnedCluster) -> Iterator[str]:
    """Yields why HybridEP is chosen where guides recommend DeepEP."""
    hybrid = first.knob("moe_token_dispatcher_type") == "flex" and first.knob(BACKEND) == "hybridep"
    if not hybrid or first.hardware.is_rack_scale or "deepep" not in (first.hardware.flex_backends or ()):
        return
    other = estimate_time(first.replace({BACKEND: "deepep"}), learned=learned)
    gain = estimate_time(first, learned=learned).tokens_per_s_per_gpu / other.tokens_per_s_per_gpu - 1
    yield (
        f"HybridEP is estimated {percent(gain)} faster than DeepEP, which guides recommend first here: by published "
        "rates of both (arXiv 2603.07685 table 7, DeepEP's documentation) and the permutation that HybridEP fuses"
    )


def planned(recipe: Recipe, *, top: int, machine: ChosenMachine | None = None) -> Plan:
    cluster = cluster_of(machine)
    found = search(recipe, learned=cluster)
    shown = choices(found, top)
    errors = tuple(finding for finding in check(recipe) if finding.kind is FindingKind.ERROR)
    absent = missing(found, shown) if shown else []
    fits = bool(found.outlined.fits.any())
    return Plan(
        recipe=recipe,
        found=found,
        choices=tuple(shown),
        missing=tuple(absent),
        findings=errors,
        fewest_nodes=None if fits else fewest_nodes(recipe, above=recipe.cluster.nodes, learned=cluster),
        machine=machine,
    )


def plan_document(plan: Plan) -> PlanDocument:
    document: PlanDocument = {
        "schema": SCHEMA,
        "limit_gib": plan.limit_gib,
        "legal": int(plan.found.legal.sum()),
        "fitting": plan.fitting,
        "estimated": plan.found.estimated,
        "fewest_nodes": plan.recipe.cluster.nodes if plan.fitting else plan.fewest_nodes,
        "layouts": [_choice(plan.recipe, choice, place) for place, choice in enumerate(plan.choices, 1)],
        "excluded": {
            "by_rule": {rule: int(rows.sum()) for rule, rows in plan.found.broken.items()},
            "memory": int(plan.found.legal.sum()) - plan.fitting,
        },
        "missing": plan.missing,
        "recipe_findings": plan.findings,
        "assumptions": plan.assumptions,
    }
    if plan.machine is not None:
        document["machine"] = plan.machine.document
        for layout, step_s in zip(document["layouts"], plan.simulated_s, strict=True):
            layout["simulated_step_s"] = step_s
    return document


def _choice(base: Recipe, choice: Choice, place: int) -> Layout:
    sizes = {name: getattr(choice.layout, name) for name in SIZES}
    return {
        "rank": place,
        "changes": base.diff(choice.recipe),
        "sizes": sizes | {"dp": choice.layout.dp, "micro_batch_size": choice.recipe.training.micro_batch_size},
        "data_parallel_size": choice.layout.dp,
        "tokens_per_s_per_gpu": choice.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": choice.model_tflops_per_gpu,
        "step_s": choice.step_s,
        "spread": choice.spread,
        "peak_gib": choice.peak_gib,
        "upper_gib": choice.upper_gib,
        "outside_gib": choice.outside_gib,
        "fits": choice.fits,
        "hottest": {"pp_rank": choice.pp_rank},
        "time_by_part": choice.time_by_part,
        "memory_by_part": choice.memory_by_part,
        "because": choice.because,
    }


def machine_words(plan: Plan) -> str:
    """Returns the machine used; empty without one."""
    return plan.machine.words if plan.machine else ""


def simulated_words(plan: Plan, place: int) -> str:
    """Returns a choice's throughput in a simulation of the machine; empty without one. `place` counts from 0."""
    if plan.machine is None:
        return ""
    recipe = plan.choices[place].recipe
    tokens = recipe.training.tokens_per_step
    rate = tokens / plan.simulated_s[place] / recipe.world_size
    return f"simulated on {plan.machine.file.name}: {tokens_per_s(rate, unit=gpu_or_rank(recipe.cluster.gpu_name))}"


def unfit_words(plan: Plan) -> str:
    """Returns how many GPUs or ranks are needed, if nothing fits."""
    unit, each = gpu_or_rank(plan.recipe.cluster.gpu_name), plan.recipe.world_size // plan.recipe.cluster.nodes
    if plan.fewest_nodes is None:
        return f"nothing fits, not even on {MAX_GPUS:,} {unit}s: the smallest peaks are shown"
    gpus = plan.fewest_nodes * each
    return f"nothing fits on {plan.recipe.world_size:,} {unit}s; at least {gpus:,} are needed (tried by doubling)"


def memory_words(choice: Choice) -> str:
    """Returns a choice's peak and upper bound, as in `estimate`, and the memory outside the allocator."""
    outside = f" and {gib(choice.outside_gib)} for context and communication" if choice.outside_gib else ""
    return f"peak {gib(choice.peak_gib)}, upper bound {gib(choice.upper_gib)}{outside}"
