"""Sections on what was measured: steps, throughput, memory, losses, noise, and the environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, quantiles

from analyzers.walls import wall_kinds
from autotune.looks.fix_names import NAMED, short_names
from autotune.looks.quantities import NONE, counted, duration, gib, percent, significant, tokens_per_s
from autotune.looks.reasons import DECIDED_BY, divergence_text
from autotune.looks.segments import NoWall, counted_steps, families, mean_segments, mean_step_us
from autotune.looks.tables import Table
from autotune.report.before_after import compared_traces
from autotune.report.material import RANKS_APART, Material, Section, memory_limit, status_words
from autotune.report.walls import burst_folders, wall_of
from autotune.tuning.losses import disagreement
from autotune.tuning.speedup import CONFIDENCE, INTERVAL_SINCE
from policies.changes.legality import numerics_of
from policies.noise import HALF_SPREAD_WITHOUT_REPEATS, MIN_HALF_SPREAD, Noise, cpu_cost, medians
from policies.reason import ReasonKind
from policies.trial import Status
from trainer.recipe import Recipe

OF_NO_WALL = {NoWall.WAIT: "bubble, sync", NoWall.UNKNOWN: "unattributed"}  # column headings


def steps(material: Material) -> Section | None:
    rows = []
    for trial, trace in compared_traces(material.trials):
        step_us = mean_step_us(trace)
        shares = dict.fromkeys(families(), 0.0)
        for segment in mean_segments(counted_steps(trace)):
            shares[segment.kind.family] += segment.us / step_us if step_us else 0.0
        wall = wall_of(trial)
        rank = NONE if trace.rank is None else str(trace.rank)
        rows.append((str(trial.number), rank, duration(step_us), *(percent(shares[f]) for f in families()), str(wall)))
    paragraphs = (
        "One bar per traced trial: the average traced step of one rank, divided completely. It is the slowest rank "
        "of the first trial; for a trial without a trace of that rank, its own slowest. "
        "Traced steps include the profiler's cost; throughput is measured on other steps, without it.",
    )
    words = tuple(OF_NO_WALL[f] if isinstance(f, NoWall) else wall_kinds()[f].column for f in families())
    table = Table(
        columns=("trial", "rank", "traced step", *words, "wall"), rows=tuple(rows), numbers=tuple(range(3 + len(words)))
    )
    return Section(key="steps", title="Where the step goes", paragraphs=paragraphs, table=table) if rows else None


def throughput(material: Material) -> Section | None:
    rows = []
    for trial in material.trials:
        figures = material.figures.get(trial.number)
        rows.append(
            (
                str(trial.number),
                short_names(trial, most=NAMED),
                status_words(trial),
                tokens_per_s(figures.tokens_per_s_per_gpu, unit=material.unit) if figures else NONE,
                duration(figures.step_us.median) if figures else NONE,
                f"{duration(figures.step_us.low)} – {duration(figures.step_us.high)}" if figures else NONE,
                str(figures.step_us.n) if figures else "0",
                burst_folders(trial),
            )
        )
    noise = Noise(trials=material.trials).detectable_gain()
    measured = (
        "Median of the measured steps, with its 95 % interval. The shaded band above the best so far is the noise of "
        f"wall-clock time: with two bursts per side, a gain below {percent(noise)} cannot be distinguished from none "
        f"by it alone.{_accepted_within(material, noise)}"
    )
    paragraphs = (measured if material.figures else "No trial finished its steps: there is no throughput to draw.",)
    columns = ("trial", "fixes", "verdict", "throughput", "step", "95 % interval", "steps", "bursts")
    table = Table(columns=columns, rows=tuple(rows), numbers=(0, 3, 4, 5, 6))
    return Section(key="throughput", title="Throughput over trials", paragraphs=paragraphs, table=table)


def _accepted_within(material: Material, noise: float) -> str:
    """Returns the accepted gains within the noise band, each with the measure that decided it."""
    decided = {
        step.trial.number: step.trial.verdict_reason.kind
        for step in material.path
        if step.obtained is not None and step.obtained.value < 1 + noise and step.trial.verdict_reason is not None
    }
    accepted = ", ".join(
        f"trial {number} by {DECIDED_BY[kind]}" for number, kind in decided.items() if kind in DECIDED_BY
    )
    if not accepted:
        return ""
    cpu = Noise(trials=material.trials, cost=cpu_cost).between_bursts()
    differs = f" (one burst differs from the next by {percent(cpu.deviation)} in CPU time)"
    return f" Accepted within it: {accepted}{differs if ReasonKind.CPU_TIME in decided.values() else ''}."


def memory(material: Material) -> Section | None:
    rows = []
    for trial in material.trials:
        figures = material.figures.get(trial.number)
        limit = memory_limit(trial)
        peaks = figures.peak_gib if figures else []
        if not peaks and trial.status is not Status.OOM:
            continue
        rows.append(
            (
                str(trial.number),
                gib(trial.proposal.predicted.peak_gib),
                gib(max(peaks)) if peaks else "out of memory",
                _by_rank(peaks),
                gib(limit),
                percent(max(peaks) / limit) if peaks and limit else NONE,
            )
        )
    columns = ("trial", "predicted peak", "hottest rank", "by rank (GiB)", "limit", "of the limit")
    table = Table(columns=columns, rows=tuple(rows), numbers=(0, 1, 2, 4, 5))
    paragraphs = ("Largest peak of any burst of the trial, for every rank; the limit is that of one rank.",)
    return Section(key="memory", title="Memory", paragraphs=paragraphs, table=table) if rows else None


def _by_rank(peaks: Sequence[float]) -> str:
    """Returns the peak of every rank; for many ranks the minimum, the quartiles and the maximum."""
    if len(peaks) <= RANKS_APART:
        return " ".join(map(significant, peaks)) or NONE
    first, middle, third = quantiles(peaks, n=4, method="inclusive")
    ends = f"{significant(min(peaks))} to {significant(max(peaks))}"
    quarters = f"quarters {significant(first)}, {significant(middle)}, {significant(third)}"
    return f"{len(peaks)} ranks: {ends}, {quarters}"


def losses(material: Material) -> Section | None:
    base, best = material.history.reference, material.history.best
    ours = material.figures.get(best.number) if best else None
    theirs = material.figures.get(base.number) if base else None
    if not (base and best and ours and theirs and ours.loss and theirs.loss):
        return None
    pairs = list(zip(theirs.loss, ours.loss, strict=False))
    rows = tuple((str(step), f"{a:.4f}", f"{b:.4f}", percent(_apart(a, b), 2)) for step, (a, b) in enumerate(pairs))
    largest = max(_apart(a, b) for a, b in pairs)
    differing = disagreement(best, base)
    verdict = (
        f"They diverge: {divergence_text(differing)}."
        if differing
        else "They agree within the tolerance for these changes."
    )
    label = numerics_of(base.recipe.diff(best.recipe))
    paragraphs = (
        f"Loss of every step from the first, warm-up included, of trial {base.number} and trial {best.number}: "
        f"{counted(len(pairs), 'step')}, largest difference {percent(largest, 2)}. {verdict} The changes are {label}.",
    )
    columns = ("step", f"trial {base.number}", f"trial {best.number}", "difference")
    return Section(
        key="losses",
        title="Losses, base and tuned",
        paragraphs=paragraphs,
        table=Table(columns=columns, rows=rows, numbers=(0, 1, 2, 3)),
    )


def noise(material: Material) -> Section | None:
    trials = material.trials
    model = Noise(trials=trials)
    wall, cpu = model.between_bursts(), Noise(trials=trials, cost=cpu_cost).between_bursts()
    rows = tuple(
        (
            str(trial.number),
            str(len(costs)),
            percent(max(costs) - min(costs)),
            ", ".join(duration(median(outcome.step_us)) for outcome in trial.outcomes if outcome.step_us),
        )
        for trial in trials
        if len(costs := medians(trial)) > 1
    )
    has_cpu = any(any(outcome.cpu_us) for trial in trials for outcome in trial.outcomes)
    paragraphs = [
        "One noise estimate, used in three places.",
        f"Between bursts: the median step of a burst varies by {percent(wall.deviation)} (one standard deviation, "
        "wall-clock time"
        + (f"; {percent(cpu.deviation)} in CPU time of the ranks)" if has_cpu else ")")
        + f", measured on {counted(wall.repeats, 'repeat')} of the same recipe; without repeats, from the steps.",
        f"For a verdict: with two bursts per side a gain counts from {percent(model.detectable_gain())} on, which is "
        f"{math.log1p(model.detectable_gain()) / wall.deviation:.1f} standard deviations at "
        f"{counted(wall.freedom, 'repeat')} (the steps count as one). A smaller gain was accepted only where every "
        "interleaved pair of further bursts confirmed it; each verdict shows the noise of its own comparison. "
        "Wall-clock time decides, unless the verdict names CPU time.",
        f"For an idea: it is tried if it could gain more than {percent(model.half_spread())}, half the spread between "
        f"repeats of one recipe (at least {percent(MIN_HALF_SPREAD)}; {percent(HALF_SPREAD_WITHOUT_REPEATS)} "
        "without repeats), because a burst costs less than a missed gain.",
        f"For the interval of a speed-up: {percent(CONFIDENCE, 0)} of Student's t at "
        f"{counted(wall.measured_freedom, 'repeat')}, with the steps of a trial where they scatter more than bursts "
        f"do. Since version {INTERVAL_SINCE} it includes the noise between bursts; reports by earlier development "
        "versions show a narrower one. With fewer than two bursts on each side it relies on repeats of other trials "
        "and is provisional.",
    ]
    table = Table(
        columns=("trial", "bursts", "spread of medians", "median step of each burst"), rows=rows, numbers=(0, 1, 2)
    )
    return Section(
        key="noise", title="How noise was measured", paragraphs=tuple(paragraphs), table=table if rows else None
    )


def unlike_production(material: Material) -> Section | None:
    rows = tuple((d.what, d.here, d.production, d.effect) for d in material.document.unlike_production)
    paragraphs = ("The bursts of the best trial, compared with a run of its exported command. Effects are estimates.",)
    table = Table(columns=("what", "in a burst", "in production", "effect on the figures"), rows=rows)
    return (
        Section(key="production", title="How a burst differs from production", paragraphs=paragraphs, table=table)
        if rows
        else None
    )


def environment(material: Material) -> Section | None:
    study = material.history.study
    if study is None:
        return None
    ran = next((o for trial in material.trials for o in trial.outcomes if o.versions), None)
    engine = Recipe.model_validate(study.recipe).burst.engine
    measured_on = {**(ran.versions if ran else {}), **({"layers": ran.layers} if ran and ran.layers else {})}
    pairs = {**study.environment, **measured_on, "moe-autotune": study.version, "seed": str(study.seed)}
    pairs |= {"engine": f"{engine}: no figure was measured" if material.history.simulated else engine}
    rows = tuple(sorted((name, str(value)) for name, value in pairs.items()))
    paragraphs = ("Where the bursts ran. Figures from another machine or version are not comparable with these.",)
    return Section(
        key="environment", title="Environment", paragraphs=paragraphs, table=Table(columns=("what", "found"), rows=rows)
    )


def _apart(a: float, b: float) -> float:
    return abs(a - b) / abs(a) if a else 0.0
