"""Infers the keys (parameters) of a simulated machine from a study, so that a study of that machine would learn the
same factors.

The study's recipes are simulated on the published machine and learned from as the study's own bursts were; the
difference of the factors is translated into keys (`translation.py`). Then, MATCHES times, they are simulated on the
machine with these keys, and the keys move until steps and traced parts agree (`matching.py`), each as far as its
factor's prior allows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from autotune.tuning.lessons import LearnedStudy
from autotune.twin.matching import PART_DEVIATIONS, Observed, matched, parts_of
from autotune.twin.probed import own_keys, probe_on
from autotune.twin.simulating import (
    MachineFit,
    as_simulated,
    is_measured,
    mean_outside_gib,
    simulate,
    traced_collection_us,
)
from autotune.twin.translation import default_of, intervals, machine_of, moved_keys
from policies.surrogate.evidence import Evidence
from policies.surrogate.factors import factors
from policies.surrogate.lesson import Lesson
from policies.surrogate.memory import GROUPS, MemorySurrogate
from policies.trial import Trial
from trainer.engines.simulated import collected_us
from trainer.recipe.machine import Machine

MATCHES = 2
ACTIVATIONS, OUTSIDE_GIB = "memory.activations", "memory.outside_gib"


def inferred_keys(study: LearnedStudy, lesson: Lesson) -> dict[str, float]:
    """Returns the keys that the study changes, with their values."""
    trials = [trial for trial in study.history.trials if is_measured(trial)]
    spreads = {factor.name: factor.spread for factor in factors() if factor.name in lesson.mean}
    learned = {name: 1 - (lesson.deviation[name] / spread) ** 2 for name, spread in spreads.items()}
    base, rows = study.recipe, study.history.rows
    found = simulate(trials, Machine(), base=base, rows=rows)
    theirs = {name: at for name, at in found.surrogate.time.theta.items() if name in lesson.mean}
    prior = moved_keys({}, lesson.mean, theirs, learned) | _of_rows(study) | _collections(trials) | _limit(study)
    keys = prior | _memory({}, study.surrogate.memory, trials, found)
    movable = {name: deviation for name, deviation in log_deviations(prior, spreads).items() if prior[name] > 0}
    for _ in range(MATCHES):
        found = simulate(trials, machine_of(keys), base=base, rows=rows)
        observed = list(_observed(study.surrogate.time.measured, found))
        keys = matched(keys, prior, movable, observed) | _memory(keys, study.surrogate.memory, trials, found)
    return keys


def _of_rows(study: LearnedStudy) -> dict[str, float]:
    """Returns the keys that the probe's rows measure directly; {} without a probe.

    Activations and memory outside the allocator are left out: bursts measure them.
    """
    rows = [row for row in study.history.rows if row.measured is not None]
    found = own_keys(rows, probe_on(study.recipe, rows, Machine()))
    return {name: value for name, value in found.items() if name not in (ACTIVATIONS, OUTSIDE_GIB)}


def log_deviations(keys: Mapping[str, float], deviation: Mapping[str, float]) -> dict[str, float]:
    """Returns the standard deviation of the log of each key, from the deviations of its factors.

    Keys whose interval includes 0 are left out.
    """
    ends = intervals(keys, deviation, width=1.0)
    return {name: math.log(high / low) / 2 for name, (low, high) in ends.items() if low > 0 and high > low}


def _observed(measured: Sequence[Evidence], found: MachineFit) -> Iterator[Observed]:
    """Yields every recipe with a measured step that was also simulated, with the parts that are traced in both."""
    simulated = {each.number: each for each in found.surrogate.time.measured}
    for each in measured:
        if each.step_s is None or each.number not in simulated:
            continue
        ours, theirs = _by_stage(each), _by_stage(simulated[each.number])
        parts = [
            part
            for rank in ours
            if rank in theirs and not each.recipe.hardware.is_cpu
            for part in parts_of(ours[rank], theirs[rank], rank=rank, step_s=each.step_s)
        ]
        recipe = as_simulated(each.recipe, Machine(), trace_steps=0)
        yield Observed(recipe=recipe, step_s=each.step_s, parts=tuple(parts))


def _by_stage(evidence: Evidence) -> dict[int, dict[str, float]]:
    """Returns pipeline rank → mean seconds of each part over its traced ranks."""
    ranks = defaultdict(list)
    for rank in evidence.ranks:
        ranks[rank.pipeline_rank].append(rank.seconds)
    return {
        stage: {work: fmean(seconds[work] for seconds in traced) for work in PART_DEVIATIONS}
        for stage, traced in ranks.items()
    }


def _memory(
    keys: Mapping[str, float], ours: MemorySurrogate, trials: Sequence[Trial], found: MachineFit
) -> dict[str, float]:
    """Returns the keys of memory: activations, scaled by the factor of their group, and GiB outside the allocator,
    shifted by measured minus simulated."""
    place = list(GROUPS).index("activations")
    ratio = (1 + ours.mean[place]) / (1 + found.surrogate.memory.mean[place])
    moved = {ACTIVATIONS: keys.get(ACTIVATIONS, 1.0) * float(ratio)}
    measured_gib = mean_outside_gib(trials)
    if measured_gib is not None and found.outside_gib is not None:
        moved[OUTSIDE_GIB] = max(keys.get(OUTSIDE_GIB, 0.0) + measured_gib - found.outside_gib, 0.0)
    return moved


def _limit(study: LearnedStudy) -> dict[str, float]:
    """Returns the share of memory that fragmentation makes unusable, if ranks ran out of memory below the GPU's limit;
    else {}."""
    met, nominal = study.surrogate.memory.limit_gib, study.recipe.memory_limit_gib
    lost = 1 - met / nominal if met and nominal else 0.0
    return {"memory.fragmentation": lost} if lost > default_of("memory.fragmentation") else {}


def _collections(trials: Sequence[Trial]) -> dict[str, float]:
    """Returns the key of garbage collections, by the median pause in the traces; {} if they show none."""
    found = []
    for trial in trials:
        once_us = collected_us(trial.recipe, machine_of({"host.gc_ms": 1.0}))
        if (pause_us := traced_collection_us(trial)) is not None and once_us:
            found.append(pause_us / once_us)
    milliseconds = median(found) if found else 0.0
    return {"host.gc_ms": milliseconds} if milliseconds else {}
