"""Advises what to try next: the fixes of a wall, ranked by how much time they could give back, as Megatron-LM's flags.

If the traced recipe is known, only legal changes of it are advised, and those that are slower by estimate only if they
free memory or act on the diagnosed cause. A trace alone does not give the recipe: then the fixes are applied to example
recipes that agree with the trace, and the values of sizes are left open. Waiting for data, and launches of models
without transformer layers, have advice of their own (`own_advice`): no fix acts on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from analyzers.diagnosis import Analysis, Wall, WallFinding
from policies.advice.cures import cure_of
from policies.advice.example_recipes import example_recipes
from policies.advice.job_properties import JobProperties, properties_of
from policies.advice.own_advice import DATA_LOADING, GRAPHED_STEP, LOADER_WORKERS, STEP_GRAPHS, WORKERS_FLAG, OwnAdvice
from policies.changes.fix import Fix, KnobChanges, gain_of
from policies.changes.legality import Refusal, derive
from policies.fixes import FITTING, FIXES, LAST_RESORTS
from policies.situation import Situation
from trainer.estimate.time.estimate import estimate_time
from trainer.frameworks.megatron_lm.spelling import knob_spellings
from trainer.launch_scripts.variables import environment
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

OPEN = "N"  # shown instead of a size that depends on the unknown recipe
SIZES = ("OMP_NUM_THREADS",)  # environment variables whose values are sizes
FP8_SINCE = (8, 9)  # compute capability of the first GPUs with FP8 tensor cores
# parts of the host wall that no fix reduces: kernels are loaded once, at their first launch
UNFIXABLE_PARTS = (DATA_LOADING, "module_loading")
MIN_WAIT_SHARE = 0.01  # fraction of a step: a shorter wait for data gets no advice
ADVISED: Mapping[str, Fix | OwnAdvice] = {**FIXES, **{own.name: own for own in (LOADER_WORKERS, STEP_GRAPHS)}}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A fix that may be tried next.

    `gives_back_us` is the part of an average step's loss to the wall that the fix claims, `gain` the throughput that
    this would gain (a fraction); both are None if it gives back memory. `flags` are Megatron-LM's flags and environment
    variables to add, `without` the flags to remove; `settings` are the changed knobs, empty if a flag or variable sets
    them. `changes` are the changed knobs if the recipe is known, else empty.
    """

    fix: str
    title: str
    wall: Wall
    gives_back_us: float | None
    gain: float | None
    flags: tuple[str, ...]
    without: tuple[str, ...]
    settings: Mapping[str, Any]
    changes: Mapping[str, Any]


def advice(analysis: Analysis, wall: Wall, situation: Situation | None = None) -> list[Advice]:
    """Returns the fixes of a wall, those that give back most first. If the job did not fit in memory, returns the fixes
    that free memory, the cheapest in step time first.

    situation: the traced recipe with its evidence; None if only the traces are known.
    """
    finding = analysis.diagnosis.finding(wall)
    if wall is Wall.MEMORY and finding is not None and finding.recoverable_us <= 0 and finding.share >= 1:
        fixes = sorted((FIXES[name] for name in (*FITTING, *LAST_RESORTS)), key=lambda fix: fix.slowdown)
        return [found for fix in fixes if (found := _advised(fix, wall, None, situation, analysis)) is not None]
    loading = _loader_workers(analysis, wall)
    analysis = _fixable(analysis)
    situation = None if situation is None else replace(situation, analysis=analysis)
    seen = situation or Situation(recipe=example_recipes(properties_of(analysis))[0], analysis=analysis)
    claimed = [(fix, us) for fix in FIXES.values() if (us := _claimed_us(fix, wall, seen)) > 0]
    claimed.sort(key=lambda row: (-row[1], row[0].name))
    acting = [one for fix, us in claimed if (one := _advised(fix, wall, us, situation, analysis)) is not None]
    own = [*loading, *(_step_graphs(wall, seen, analysis) if situation is None else [])]
    return sorted([*own, *acting], key=lambda one: -(one.gives_back_us or 0.0))


def _loader_workers(analysis: Analysis, wall: Wall) -> list[Advice]:
    """Returns the advice to use more loader workers if the device waits long enough for data; else []."""
    finding = analysis.diagnosis.finding(wall)
    us = finding.parts.get(DATA_LOADING, 0.0) if finding is not None and wall is Wall.HOST else 0.0
    waits = us > MIN_WAIT_SHARE * _step_us(analysis)
    return [_own(LOADER_WORKERS, f"{WORKERS_FLAG} {OPEN}", wall, us, analysis)] if waits else []


def _step_graphs(wall: Wall, seen: Situation, analysis: Analysis) -> list[Advice]:
    """Returns the advice to capture whole steps if launches are waited for in a model without transformer layers; else
    []. It claims what the fix `cuda_graphs` would."""
    us = 0.0 if properties_of(analysis).transformer else _claimed_us(FIXES["cuda_graphs"], wall, seen)
    return [_own(STEP_GRAPHS, GRAPHED_STEP, wall, us, analysis)] if us > 0 else []


def _own(own: OwnAdvice, flag: str, wall: Wall, us: float, analysis: Analysis) -> Advice:
    return Advice(
        fix=own.name,
        title=own.title,
        wall=wall,
        gives_back_us=us,
        gain=gain_of(us, _step_us(analysis)),
        flags=(flag,),
        without=(),
        settings={},
        changes={},
    )


def _fixable(analysis: Analysis) -> Analysis:
    """Returns the analysis without the parts of the host wall that no fix reduces (UNFIXABLE_PARTS)."""
    diagnosis = analysis.diagnosis
    return msgspec.structs.replace(
        analysis, diagnosis=msgspec.structs.replace(diagnosis, walls=[_of_fixes(one) for one in diagnosis.walls])
    )


def _of_fixes(finding: WallFinding) -> WallFinding:
    us = sum(finding.parts.get(name, 0.0) for name in UNFIXABLE_PARTS) if finding.wall is Wall.HOST else 0.0
    if us <= 0:
        return finding
    left = max(finding.recoverable_us - us, 0.0)
    return msgspec.structs.replace(
        finding,
        recoverable_us=left,
        share=finding.share * left / finding.recoverable_us if finding.recoverable_us else 0.0,
        parts={name: part for name, part in finding.parts.items() if name not in UNFIXABLE_PARTS},
    )


def _claimed_us(fix: Fix, wall: Wall, situation: Situation) -> float:
    """Returns the µs a fix claims on a wall: the sum of its claims, at most what the wall could give back."""
    if not any(claim.wall is wall for claim in fix.claims):
        return 0.0
    return min(sum(one.us(situation) for one in fix.claims if one.wall is wall), fix.bound_us(situation, wall))


def _advised(fix: Fix, wall: Wall, us: float | None, situation: Situation | None, analysis: Analysis) -> Advice | None:
    """Returns the advice to apply a fix; None if it does not apply, or has no legal change to offer."""
    known = situation is not None
    shown = properties_of(analysis)
    asked = [situation] if situation is not None else [
        Situation(recipe=recipe, analysis=analysis) for recipe in example_recipes(shown)
    ]  # fmt: skip
    # the estimate does not know the loss of a diagnosed cause
    faster = known and us is not None and fix.name not in cure_of(analysis.diagnosis).fixes
    found = next((pair for one in asked if (pair := _changed(fix, one, shown, faster=faster)) is not None), None)
    if found is None:
        return None
    before, after, named = found
    moved = named | {knob: to for knob, (_, to) in before.diff(after).items()}
    flags, without = _words(before, after, moved, known=known)
    step_us = _step_us(analysis)
    return Advice(
        fix=fix.name,
        title=fix.title,
        wall=wall,
        gives_back_us=us,
        gain=None if us is None else gain_of(us, step_us),
        flags=flags,
        without=without,
        settings={} if flags or without else moved,
        changes={knob: to for knob, (_, to) in before.diff(after).items()} if known else {},
    )


def _changed(
    fix: Fix, situation: Situation, shown: JobProperties, *, faster: bool
) -> tuple[Recipe, Recipe, KnobChanges] | None:
    """Returns the recipe, the recipe after the fix's first legal change, and that change; None if there is none.

    faster: skips changes that are slower by estimate.
    """
    if fix.precondition(situation) is not None:
        return None
    for changes in fix.changes(situation):
        after = derive(situation.recipe, changes)
        if isinstance(after, Refusal) or not _is_possible(after, shown):
            continue
        if (
            not faster
            or estimate_time(after).tokens_per_s_per_gpu >= estimate_time(situation.recipe).tokens_per_s_per_gpu
        ):
            return situation.recipe, after, changes
    return None


def _is_possible(after: Recipe, shown: JobProperties) -> bool:
    """Returns false if the traced GPU has no units for the recipe's precision, or if the traced model has no
    transformer layers, in which FP8 and the scopes of CUDA graphs are."""
    capability = shown.compute_capability
    eight_bits = after.training.precision.startswith(("fp8", "mxfp8", "nvfp4"))
    if not shown.transformer and (eight_bits or after.knob("cuda_graph_impl") not in (None, "none")):
        return False
    return capability is None or not eight_bits or capability >= FP8_SINCE


def _words(
    before: Recipe, after: Recipe, moved: KnobChanges, *, known: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the flags and environment variables to add, and the flags to remove, of knobs that moved."""
    was, now = (
        {one.name: one.words or one.wanted for one in knob_spellings(recipe) if one.name in moved}
        for recipe in (before, after)
    )
    come = [" ".join(_open(name, words, known)) for name, words in now.items() if words and words != was[name]]
    go = [words[0] for name, words in was.items() if words and not now[name]]
    variables = sorted(environment(after).items() - environment(before).items())
    exported = [f"{name}={OPEN if name in SIZES and not known else value}" for name, value in variables]
    return (*come, *exported), tuple(go)


def _open(name: str, words: tuple[str, ...], known: bool) -> tuple[str, ...]:
    """Returns the flag's words, with a placeholder for a size if the recipe is not known."""
    size = not known and KNOBS[name].domain.kind == "int" and len(words) == 2
    return (words[0], OPEN) if size else words


def _step_us(analysis: Analysis) -> float:
    return Situation(recipe=example_recipes(JobProperties())[0], analysis=analysis).step_us
