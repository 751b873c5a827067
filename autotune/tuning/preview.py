"""Previews a tuning run without running anything: findings, memory, the expected path and its cost.

The path assumes that every burst gives its predicted figures. Nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from rich.console import Console

from autotune.estimate.memory import Memory, against_limit, memory_document
from autotune.looks.acting import acting_changes
from autotune.looks.fix_names import NAMED, is_spelled_out, names_text, parts_of, shares_text
from autotune.looks.quantities import changes_text, counted, gain_interval, gib, gpu_or_rank, percent, significant
from autotune.looks.reasons import for_predicted_bursts, sentence
from autotune.looks.recipes import fidelity_words, layout_words, setting_words
from autotune.looks.text_tables import Entry, print_entries
from autotune.looks.working import working
from autotune.looks.wrapping import plain_console, say
from autotune.tuning.loop import base_proposal
from autotune.tuning.study import DEFAULT_SEED
from policies.trial import PHASES, Changes, FixShare, Phase, Proposal, Status, Trial
from policies.tuner.probe_allowance import probe_s, probed_ranks
from policies.tuner.tuner import Tuner
from trainer.burst import Failure, FailureKind, Outcome
from trainer.estimate.candidates import tabulate
from trainer.estimate.startup import startup_of
from trainer.estimate.time.estimate import time_of
from trainer.fidelity import Fidelity
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.rules.rule import Finding

MAX_PROPOSALS = 4  # most proposals that are previewed, exploring ones included
STEPS = 8  # measured steps of a predicted burst
NEEDED = "slower, and needed: the recipe before does not fit"


class Expected(TypedDict):
    """A recipe that would be tried if every burst before it gave its predicted figures."""

    phase: Phase
    fix: str  # name of the largest of `fixes`
    fixes: list[FixShare]
    interaction: float | None  # predicted gain beyond the sum of the predicted shares
    because: str
    changes: dict[str, tuple[Any, Any]]  # from the base recipe: knob → [from, to]
    tokens_per_s_per_gpu: float | None  # throughput of the recipe at full size, also if its bursts run a proxy
    fits_probability: float | None  # 0..1
    fidelity: Fidelity | None  # size of its bursts; null: full size


class SizePreview(TypedDict):
    """The bursts of one size and their predicted hours; `fidelity` null: at full size."""

    fidelity: Fidelity | None
    bursts: int
    hours: float
    gpu_hours: float


class Preview(TypedDict):
    """Document of `run --dry-run --json`: predictions, nothing measured.

    `proposals`: the expected path; `exploring`: recipes that would be tried between or after them because they may
    gain, although a loss is predicted.
    """

    schema: int
    recipe_resolved: str  # YAML, every default filled in
    findings: list[Finding]
    memory: Memory
    proposals: list[Expected]
    exploring: list[Expected]
    bursts: int | None
    hours: float | None  # predicted for these bursts, with starting ranks and models
    gpu_hours: float | None
    startup_hours: float | None  # part of `hours` for start-up: assumed, not predicted
    sizes: list[SizePreview]  # one entry if there are no proxies
    probe_gpu_hours: float | None  # the most that the probe before them may cost; None: no probe


@dataclass(frozen=True, kw_only=True)
class PredictedTrial:
    """A trial that would follow if every burst gave its predicted figures.

    `tokens_per_s_per_gpu`: predicted for its recipe at full size, None if it does not fit.
    """

    trial: Trial
    tokens_per_s_per_gpu: float | None

    @property
    def loses(self) -> bool:
        """Returns true if a loss is predicted over the recipe that it changes."""
        gain = self.trial.proposal.predicted.gain
        return gain is not None and gain < 0

    @property
    def explores(self) -> bool:
        """Returns true if it would be tried because it may gain, although a loss is predicted.

        In the fit phase a loss is what fitting costs.
        """
        return self.loses and self.trial.proposal.phase is not Phase.FIT


@dataclass(frozen=True, kw_only=True)
class CostPreview:
    """Cost of all bursts: predicted steps, and start-up times by the defaults of the simulated cluster."""

    bursts: int
    gpus: int
    steps_s: float
    first_start_s: float
    later_start_s: float  # start-up of every burst after the first

    @property
    def startup_s(self) -> float:
        return self.first_start_s + (self.bursts - 1) * self.later_start_s

    @property
    def hours(self) -> float:
        return (self.steps_s + self.startup_s) / 3600

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.gpus


def preview(
    recipe: Recipe, *, seed: int | None, budget: int, max_gpu_hours: float | None = None, probe: bool = True
) -> Preview:
    """Prints the preview on one screen and returns it as a document."""
    probe_hours = _probe_gpu_hours(recipe, budget, max_gpu_hours) if probe else None
    findings, memory = findings_of(recipe), memory_document(recipe)
    with working("ranking legal layouts and settings"):
        tried = expected_trials(recipe, memory, DEFAULT_SEED if seed is None else seed)
    path, exploring = _parted(tried)
    trials = [each.trial for each in tried]
    costs = costs_of(trials, budget)
    console = plain_console()
    _show(console, recipe, [f"{f.kind}: {f.message} → {f.hint}" for f in findings], memory, path, exploring, costs)
    if probe_hours is not None:
        unit = gpu_or_rank(recipe.cluster.gpu_name)
        say(console, f"a probe of the cluster comes first: at most {significant(probe_hours, 2)} {unit}-hours")
    every = costs.values()
    return {
        "schema": 1,
        "recipe_resolved": recipe.to_yaml(resolved=True),
        "findings": findings,
        "memory": memory,
        "proposals": [_document(each, trials[0].recipe) for each in path[1:]],
        "exploring": [_document(each, trials[0].recipe) for each in exploring],
        "bursts": sum(cost.bursts for cost in every) if costs else None,
        "hours": sum(cost.hours for cost in every) if costs else None,
        "gpu_hours": sum(cost.gpu_hours for cost in every) if costs else None,
        "startup_hours": sum(cost.startup_s for cost in every) / 3600 if costs else None,
        "probe_gpu_hours": probe_hours,
        "sizes": [
            {"fidelity": size, "bursts": cost.bursts, "hours": cost.hours, "gpu_hours": cost.gpu_hours}
            for size, cost in costs.items()
        ],
    }


def _probe_gpu_hours(recipe: Recipe, budget: int, max_gpu_hours: float | None) -> float | None:
    """Returns the most that a probe before the first burst may cost, GPU-hours; None without a probe."""
    seconds = probe_s(recipe, budget=budget, max_gpu_hours=max_gpu_hours) if recipe.burst.probe_links else None
    return None if seconds is None else seconds * probed_ranks(recipe) / 3600


def _parted(tried: Sequence[PredictedTrial]) -> tuple[list[PredictedTrial], list[PredictedTrial]]:
    """Returns the expected path, base recipe first, and the other steps, which would only be explored."""
    return [each for each in tried if not each.explores], [each for each in tried if each.explores]


def expected_trials(recipe: Recipe, memory: Memory, seed: int) -> list[PredictedTrial]:
    """Returns the base recipe and the proposals that follow if every burst gives its predicted figures."""
    tuner = Tuner(recipe, seed)
    trials = [_base(recipe, memory, tuner)]
    path = [_predicted_trial(tuner, trials[0], [])]
    while len(trials) <= MAX_PROPOSALS and (proposal := _next(tuner, trials)):
        outcome = _predicted(tuner, proposal.ran, trials)
        parent = trials[proposal.parent].recipe if proposal.parent is not None else proposal.recipe
        trial = _trial(len(trials), proposal, outcome, parent.diff(proposal.recipe))
        path.append(_predicted_trial(tuner, trial, trials))
        trials.append(trial)
    return path


def _predicted_trial(tuner: Tuner, trial: Trial, before: Sequence[Trial]) -> PredictedTrial:
    outcome = trial.outcomes[0]
    whole = outcome if trial.fidelity is None else _predicted(tuner, trial.recipe, before)
    return PredictedTrial(trial=trial, tokens_per_s_per_gpu=whole.tokens_per_s_per_gpu if outcome.ok else None)


def _next(tuner: Tuner, trials: Sequence[Trial]) -> Proposal | None:
    best = max(trials, key=lambda trial: trial.outcomes[0].tokens_per_s_per_gpu or 0.0)
    if trials[0].recipe.tune.proxy_nodes is not None:
        best = tuner.choice(trials) or trials[0]
    found = (tuner.propose(best, phase, trials) for phase in PHASES)
    return next((proposal for proposal in found if proposal), None)


def _base(recipe: Recipe, memory: Memory, tuner: Tuner) -> Trial:
    """Returns trial 0, the base recipe: out of memory if the estimate exceeds the limit."""
    if not memory["may_fit"]:
        failure = Failure(kind=FailureKind.OOM, evidence=f"estimated peak {gib(memory['peak_gib'])} is over the limit")
        return _trial(0, base_proposal(recipe), Outcome(failure=failure, limit_gib=recipe.memory_limit_gib), {})
    proposal = tuner.sized(base_proposal(recipe), [])
    return _trial(0, proposal, _predicted(tuner, proposal.ran, []), {})


def _predicted(tuner: Tuner, recipe: Recipe, trials: Sequence[Trial]) -> Outcome:
    log_step, _ = tuner.surrogate(trials).time.predict(tabulate([recipe]))
    step_s = math.exp(float(log_step[0]))
    tokens = recipe.training.tokens_per_step
    return Outcome(
        step_us=[1e6 * step_s] * STEPS,
        tokens_per_step=tokens,
        tokens_per_s_per_gpu=tokens / recipe.world_size / step_s,
        limit_gib=recipe.memory_limit_gib,
        ranks=recipe.world_size,
    )


def _trial(number: int, proposal: Proposal, outcome: Outcome, changes: Changes) -> Trial:
    return Trial(
        number=number,
        proposal=proposal,
        changes=changes,
        bursts=(number + 1,),
        outcomes=(outcome,),
        status=Status.OK if outcome.ok else Status.OOM,
    )


def costs_of(path: Sequence[Trial], budget: int) -> dict[Fidelity | None, CostPreview]:
    """Returns the cost of the bursts of each size, smallest first; {} if no trial of the path has step times.

    Proxies share the bursts as in the path, with one burst at full size each for the first and the last recipe.
    """
    if all(trial.fidelity is None for trial in path):
        cost = cost_of(path, budget)
        return {} if cost is None else {None: cost}
    ends = [path[0], path[-1]][: max(budget - 1, 1)]
    searched = max(budget - len(ends), 1)
    shares = [searched * (at + 1) // len(path) - searched * at // len(path) for at in range(len(path))]
    found: dict[Fidelity | None, CostPreview] = {}
    for size in sorted({trial.fidelity for trial in path if trial.fidelity is not None}):
        bursts = sum(share for trial, share in zip(path, shares, strict=True) if trial.fidelity == size)
        cost = cost_of([trial for trial in path if trial.fidelity == size], bursts)
        if cost is not None and bursts:
            found[size] = cost
    steps_s = time_of(tabulate([trial.recipe for trial in ends])).step_s
    whole = [
        replace(
            trial, proposal=replace(trial.proposal, fidelity=None), outcomes=(Outcome(step_us=[1e6 * float(step)]),)
        )
        for trial, step in zip(ends, steps_s, strict=True)
    ]
    full = cost_of(whole, len(ends) + sum(share for t, share in zip(path, shares, strict=True) if t.fidelity is None))
    return found if full is None else found | {None: full}


def cost_of(path: Sequence[Trial], budget: int) -> CostPreview | None:
    """Returns the cost if a burst takes as long as the average of the path; None if no trial has step times."""
    steps = [trial.outcomes[0].step_us[0] / 1e6 for trial in path if trial.outcomes[0].step_us]
    if not steps:
        return None
    recipe = path[0].ran
    run = recipe.burst.warmup_steps + recipe.burst.measure_steps + recipe.burst.trace_steps
    start = startup_of(recipe)
    return CostPreview(
        bursts=budget,
        gpus=recipe.world_size,
        steps_s=budget * run * sum(steps) / len(steps),
        first_start_s=start.launch_s + start.build_s,
        later_start_s=start.build_s + (0.0 if recipe.burst.keeps_ranks else start.launch_s),
    )


def _document(tried: PredictedTrial, base: Recipe) -> Expected:
    trial, proposal = tried.trial, tried.trial.proposal
    return {
        "phase": proposal.phase,
        "fix": proposal.fix,
        "fixes": list(parts_of(proposal, trial.changes)),
        "interaction": proposal.interaction,
        "because": _because(trial),
        "changes": base.diff(proposal.recipe),
        "tokens_per_s_per_gpu": tried.tokens_per_s_per_gpu,
        "fits_probability": proposal.predicted.fits_probability,
        "fidelity": proposal.fidelity,
    }


def _show(
    console: Console,
    recipe: Recipe,
    findings: Sequence[str],
    memory: Memory,
    path: Sequence[PredictedTrial],
    exploring: Sequence[PredictedTrial],
    costs: Mapping[Fidelity | None, CostPreview],
) -> None:
    cluster = f"{recipe.world_size} {recipe.cluster.gpu_name.upper()}"
    say(console, f"{recipe.name}, {cluster}: {layout_words(recipe)}, {setting_words(recipe)}")
    for finding in findings:
        say(console, finding)
    say(console, f"estimated peak {gib(memory['peak_gib'])} per rank, {against_limit(memory)}")
    console.print()
    say(console, "The expected path, by estimate only; nothing is run:")
    unit = gpu_or_rank(recipe.cluster.gpu_name)
    if any(each.trial.fidelity is not None for each in path):
        say(console, "Tokens/s, gains and P(fits) are of the recipes at full size, whatever runs.")
    figures = (f"tokens/s/{unit}", "gain (90 %)", "P(fits)")
    print_entries(console, "phase, layout, settings", figures, [_entry(each) for each in path], first=0)
    if exploring:
        say(console, _exploring_words(exploring))
    for each in path[1:2]:
        trial = each.trial
        console.print()
        say(console, names_text(trial.proposal, trial.changes), lead="1: ")
        if trial.changes and not is_spelled_out(trial.proposal, trial.changes):
            say(console, changes_text(acting_changes(trial.recipe, trial.changes)), lead="   changes: ")
        if shares := shares_text(trial.proposal):
            say(console, shares, lead="   shares: ")
        say(console, _because(trial), lead="   why: ")
    if costs:
        console.print()
    for size, cost in costs.items():
        hours, gpu_hours = significant(cost.hours, 2), significant(cost.gpu_hours, 2)
        need = "needs" if cost.bursts == 1 else "need"
        of_size = f" ({fidelity_words(size)})" if len(costs) > 1 else ""
        say(console, f"{counted(cost.bursts, 'burst')}{of_size} {need} about {hours} h, {gpu_hours} {unit}-hours")
        starting = significant(cost.startup_s / 3600 * cost.gpus, 2)
        first, later = significant(cost.first_start_s, 2), significant(cost.later_start_s, 2)
        say(
            console,
            f"of these {starting} {unit}-hours for starting ranks and models: assumed {first} s for the first burst, "
            f"{later} s for each later one",
        )


def _exploring_words(exploring: Sequence[PredictedTrial]) -> str:
    """Returns the recipes outside the path in one sentence: each layout with its number of recipes and the predicted
    gain of the first."""
    by_layout: dict[str, list[Trial]] = {}
    for each in exploring:
        by_layout.setdefault(layout_words(each.trial.recipe), []).append(each.trial)
    each = "; ".join(
        f"{layout}{f' ({len(trials)} recipes)' if len(trials) > 1 else ''}: {_gain(trials[0])}"
        for layout, trials in by_layout.items()
    )
    return f"Also tried, since they may gain although a loss is predicted: {each}"


def _gain(trial: Trial) -> str:
    """Returns the predicted gain with its 90 % interval; empty where it is not known."""
    predicted = trial.proposal.predicted
    if predicted.gain is None or predicted.gain_low is None or predicted.gain_high is None:
        return ""
    return gain_interval(predicted.gain, predicted.gain_low, predicted.gain_high, digits=0)


def _because(trial: Trial) -> str:
    """Returns why a recipe would be tried, in words that count no predicted burst as evidence."""
    assert trial.proposal.reason is not None
    return sentence(for_predicted_bursts(trial.proposal.reason))


def _names(trial: Trial) -> tuple[str, ...]:
    """Returns the fixes of a trial; empty for the base recipe."""
    return (names_text(trial.proposal, trial.changes, most=NAMED),) if trial.number else ()


def _size(trial: Trial) -> tuple[str, ...]:
    """Returns (size of the proxy,) if a trial's bursts run one; () for the recipe itself."""
    return () if trial.fidelity is None else (fidelity_words(trial.fidelity),)


def _entry(tried: PredictedTrial) -> Entry:
    trial, predicted = tried.trial, tried.trial.proposal.predicted
    rate = "does not fit" if tried.tokens_per_s_per_gpu is None else significant(tried.tokens_per_s_per_gpu, 4)
    fits = percent(predicted.fits_probability, 0) if predicted.fits_probability is not None else ""
    phase = "base" if trial.number == 0 else trial.proposal.phase.value
    return Entry(
        title=f"{phase:<7}  {layout_words(trial.recipe)}",
        figures=(rate, _gain(trial), fits),
        below=(*_names(trial), setting_words(trial.recipe), *_size(trial), *([NEEDED] if tried.loses else [])),
    )
