"""Writes the sentences of `gap` for terminal and page."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.gap.document import Cause, GapDocument, GapEntry, LevelEntry, PublishedRun, Time, UnpricedEntry
from autotune.looks.fix_names import name_title
from autotune.looks.flagless import settings_text, variables_text
from autotune.looks.quantities import (
    changes_text,
    counted,
    duration,
    first_changes,
    gain,
    gain_interval,
    gpu_or_rank,
    percent,
    significant,
)
from autotune.looks.segments import KINDS
from trainer.estimate.gap.parts import Cause as PartCause
from trainer.estimate.gap.waterfall import Kind, LevelName
from trainer.recipe.knobs import KNOBS
from trainer.values import knob_value

TRACED = {kind.key: kind.words for kind in KINDS}  # parts of a trace without a recipe
WORDS: dict[str, str] = {
    PartCause.ROUTER: "router: wait for the most loaded rank",
    PartCause.EP: "links: EP dispatch and combine",
    PartCause.TP: "links: TP collectives",
    PartCause.CP: "links: CP exchange",
    PartCause.DP: "links: gradients and parameters",
    PartCause.DENSE: "dense GEMMs",
    PartCause.EXPERTS: "grouped GEMMs of the experts",
    PartCause.ATTENTION: "attention",
    PartCause.MEMORY_BOUND: "memory-bound kernels",
    PartCause.RECOMPUTE: "recompute",
    PartCause.OPTIMIZER: "optimizer step",
    PartCause.HOST: "host: launches are late",
    PartCause.WAITING: "pipeline bubble and late ranks",
    PartCause.OTHER: "copies and other idle time",
    "probed_links": "links and their overlap, as probed",
    "probed_products": "GEMMs and attention, as probed",
    "probed_memory_bound": "memory-bound kernels, as probed",
    "probed_host": "host, as probed",
    "probed_optimizer": "optimizer step, as probed",
    "sequence_and_batch": "sequence length and batch size",
    "pipeline": "pipeline stages",
    "cluster": "number of GPUs",
    "model": "details of the model",
    "software": "software release",
}
LEVELS: dict[str, str] = {
    LevelName.MEASURED: "measured step",
    LevelName.OWN: "estimate of your recipe",
    LevelName.REFERENCE: "your other run",
    LevelName.PLAN: "plan's first choice, by estimate",
    LevelName.PEAK: "peak of the GPUs",
    LevelName.COMPUTE: "compute",
}
FAR_OFF = 1.3  # ratio of measured to estimated time of the reference, either way, from which a note says so
NOT_PRICED = 8  # settings that are named; more are counted
MIN_SHOWN_CORRECTION = 0.05  # share of a cause's time below which corrections are not shown
LONGER = 1.01  # ratio of step times; below it the words are "no longer"
WHOLE = "whole trace"  # a trace without marked steps
ENDINGS = {"nan": "ended in NaN", "oom": "ran out of memory"}
SMALL = "smaller ones together"
SPLITS = {
    "parts": "the measured step against the estimate: by traced parts of rank {rank}; settings: by estimate",
    "estimate": "no trace: everything is by estimate, and what it does not explain is one figure",
    "parts without a recipe": "by traced parts; the recipe is not known, so no setting is compared (--recipe FILE)",
    "nothing measured": "nothing was measured: from the estimate of the recipe",
}


def title(found: GapDocument) -> str:
    """Returns the title of the waterfall: its first and its last level."""
    to = "its compute" if LevelName.COMPUTE in {level.name for level in found.levels} else "what is attainable"
    return f"from {'your step' if found.steps_marked else 'the whole trace'} down to {to}"


def headline(found: GapDocument) -> str:
    """Returns the answer in one sentence, after the failure that ended the run, if any."""
    if found.ended is None:
        return _answer(found)
    how = ENDINGS.get(found.ended.kind, f"failed ({found.ended.kind})")
    return f"the run {how} ({found.ended.evidence}): fix that first. Before it, {_answer(found)}"


def _answer(found: GapDocument) -> str:
    first, last = found.levels[0], goal(found)
    whole = "your step" if found.steps_marked else "the whole trace"
    most = _most(found.causes[0], found) if found.causes else ""
    if last is not None and last.name == LevelName.COMPUTE:
        return f"{whole} takes {duration(1e3 * first.time.ms)}, its compute {duration(1e3 * last.time.ms)}{most}"
    if last is None:
        return f"your step takes {duration(1e3 * first.time.ms)}; nothing comparable is known"
    ratio = first.time.ms / last.time.ms if last.time.ms else 0.0
    what = f"{whole} takes" if first.name == LevelName.MEASURED else "your step should take"
    name = level_name(last, found)
    against = f"{duration(1e3 * last.time.ms)} {'' if name.startswith('at ') else 'of '}{name}"
    text = f"{what} {duration(1e3 * first.time.ms)}, against {against}"
    return f"{text}: {significant(ratio)} times as long{most}" if ratio > LONGER else f"{text}: no longer"


def _most(cause: Cause, found: GapDocument) -> str:
    would = (
        "most would be recovered by" if cause.kind == Kind.SETTING and cause.name not in WORDS else "most is lost to"
    )
    return f"; {would} {cause_name(cause, found)}: {duration(1e3 * cause.time.ms)}"


def goal(found: GapDocument) -> LevelEntry | None:
    """Returns the level at which the gaps end: the reference, else the plan, else compute."""
    names = (LevelName.REFERENCE, LevelName.PLAN, LevelName.COMPUTE)
    return next((level for name in names for level in found.levels if level.name == name), None)


def _has_reference(found: GapDocument) -> bool:
    return any(level.name == LevelName.REFERENCE for level in found.levels)


def level_name(level: LevelEntry, found: GapDocument) -> str:
    if level.name == LevelName.REFERENCE and found.against is None and found.published is not None:
        return f"at the rate of {found.published.row}"
    if level.name == LevelName.MEASURED and not found.steps_marked:
        return WHOLE
    return LEVELS[level.name]


def unit(found: GapDocument) -> str:
    """Returns the unit of rates: `tokens/s/GPU`, or per rank on CPUs."""
    return f"tokens/s/{gpu_or_rank(found.gpu or '')}"


def level_text(level: LevelEntry, found: GapDocument) -> str:
    """Returns `measured step: 29.4 s, 4,430 tokens/s/GPU, 102 TFLOPS`."""
    rate = "" if level.tokens_per_s_per_gpu is None else f", {significant(level.tokens_per_s_per_gpu, 4)} {unit(found)}"
    tflops = "" if level.model_tflops_per_gpu is None else f", {significant(level.model_tflops_per_gpu)} TFLOPS"
    return f"{level_name(level, found)}: {duration(1e3 * level.time.ms)}{rate}{tflops}"


def gap_name(gap: GapEntry, found: GapDocument) -> str:
    if gap.kind == Kind.UNEXPLAINED:
        return "traced step against measured one" if found.split == "parts" else "beyond the estimate"
    if gap.kind in (Kind.SETTING, Kind.WORK):
        return setting_name(gap.name, gap.changes)
    return part_name(gap.name, found)


def part_name(name: str, found: GapDocument) -> str:
    """Returns a part of the step in words; for a trace without a recipe, the parts are segments of the step."""
    return TRACED.get(name, name) if found.gpu is None else WORDS.get(name, name)


def cause_name(cause: Cause, found: GapDocument) -> str:
    if cause.kind == Kind.UNEXPLAINED:
        return "time beyond the estimate"
    if cause.kind == Kind.PART:
        return part_name(cause.name, found)
    return WORDS.get(cause.name) or setting_name(cause.name, cause.changes)


def setting_name(name: str, changes: dict[str, tuple[object, object]]) -> str:
    """Returns the words or title of a change; else its first knob with both values."""
    if name in WORDS:
        return WORDS[name]
    title = name_title(name)
    return title if title != name or not changes else f"{name} {_values(changes[next(iter(changes))])}"


def _values(values: tuple[object, object]) -> str:
    return f"{knob_value(values[0])} → {knob_value(values[1])}"


def time_text(time: Time) -> str:
    """Returns `1.20 s (0.90 s to 1.50 s)`; an exact time without the interval."""
    if time.low_ms == time.high_ms:
        return signed(time.ms)
    return f"{signed(time.ms)} ({signed(time.low_ms)} to {signed(time.high_ms)})"


def signed(ms: float) -> str:
    """Returns a duration with a minus sign if it is negative."""
    return ("−" if ms < 0 else "") + duration(1e3 * abs(ms))


def moved(ms: float) -> str:
    """Returns a change of a duration with its sign: `+1.28 s`, `−846 ms`."""
    return f"{'+' if ms > 0 else ''}{signed(ms)}"


def published_text(run: PublishedRun) -> str:
    """Returns the published run in one line."""
    trust = "" if run.trusted else ", roughly"
    return (
        f"{run.row}: {run.model} on {run.gpus} {run.gpu}, {run.precision}, sequences of {run.seq_length:,}, batch "
        f"{run.global_batch_size:,}, NeMo {run.release}: {significant(run.tokens_per_s_per_gpu, 4)} tokens/s/GPU, "
        f"{significant(run.model_tflops_per_gpu)} TFLOPS{trust} ({run.source})"
    )


def notes(found: GapDocument) -> Iterator[str]:
    """Yields how the time was divided, what is not comparable, what was assumed, and which iterations were measured."""
    yield SPLITS[found.split].format(rank=found.rank)
    run = found.published
    if run is not None and run.differs:
        differs = ", ".join(f"{name} {_values(values)}" for name, values in run.differs.items())
        lead = "it is not comparable: it" if run.named else "nothing comparable is published; the nearest run"
        yield f"{lead} differs in {differs}: {published_text(run)}"
        yield "the settings are compared with plan's first choice instead"
    elif run is not None:
        yield f"published {published_text(run)}"
        if found.scale != 1.0:
            yield f"estimates are multiplied by {found.scale:.3f}: the published run's then equals its measurement"
        if found.software is None:
            yield "your software release is assumed to be that of the published run; --software names another"
    elif found.gpu == "cpu" and found.against is None:
        scaled = "" if found.split == "nothing measured" else "are scaled to your step and "
        yield f"nothing is published for CPUs: estimates {scaled}show shares, not speeds"
    far_off = not 1 / FAR_OFF < found.scale < FAR_OFF and found.gpu != "cpu"
    if far_off and found.split == "parts" and not found.both_traced:
        yield (
            f"the other run takes {found.scale:.2f} times its estimate: parts scaled by it say little unless both "
            "runs are traced"
        )
    if found.broken:
        yield f"the recipe as it is read breaks {', '.join(found.broken)}: see `moe-autotune check`"
    if found.unsaid:
        some = f"{', '.join(found.unsaid[:4])} and {len(found.unsaid) - 4} more"
        as_in = "as in the reference" if _has_reference(found) else "the defaults"
        yield f"a log does not show {some}: assumed to be {as_in}"
    if found.iterations is not None and found.source == "log":
        before = "" if found.ended is None else " before the run ended"
        warm_up = "warm-up left out" if found.warm_up_left_out else "warm-up included: there are no more"
        yield f"the step is the median of {counted(found.iterations, 'iteration')}{before}, {warm_up}"


def not_priced_texts(found: GapDocument) -> list[str]:
    """Returns `manual_gc false → true (published: +3.1 % (+0.5 to +5.7 %))` for each setting, published effects first,
    NOT_PRICED at most."""
    known = sorted(found.not_priced, key=lambda each: each.published_gain is None)
    shown = [_not_priced(each) for each in known[:NOT_PRICED]]
    return [*shown, *([f"{len(known) - NOT_PRICED} more"] if len(known) > NOT_PRICED else [])]


def _not_priced(each: UnpricedEntry) -> str:
    published = "" if each.published_gain is None else f" (published: {gain_interval(*each.published_gain)})"
    return f"{each.name} {_values(each.values)}{published}"


def advices(found: GapDocument) -> list[list[str]]:
    """Returns the lines of advice on each cause; a command that helps with several is given once."""
    shown: set[str] = set()
    every = []
    for cause in found.causes:
        fresh = [command for command in cause.advice.commands if command not in shown]
        shown |= set(fresh)
        every.append([*_advice(cause), *fresh])
    return every


def _advice(cause: Cause) -> Iterator[str]:
    advice = cause.advice
    if cause.changes:
        yield changes_text(cause.changes) if len(cause.changes) <= 6 else first_changes(cause.changes)
    facts = [] if advice.gain is None else [f"alone {gain(advice.gain)} throughput"]
    facts += ["alone it breaks a rule"] if advice.legal is False else []
    facts += ["alone it does not fit, by estimate"] if advice.fits is False else []
    facts += [advice.numerics] if advice.numerics not in (None, "training-equivalent") else []
    if facts:
        yield ", ".join(facts)
    if cause.parts_ms and cause.changes:
        least_ms = MIN_SHOWN_CORRECTION * abs(cause.time.ms)
        parts = [f"{WORDS.get(name, name)} {moved(ms)}" for name, ms in cause.parts_ms.items() if abs(ms) >= least_ms]
        if parts:
            yield f"corrected by traced parts: {', '.join(parts)}"
    if advice.add:
        yield f"launch script, set: {' '.join(advice.add)}"
    if advice.remove:
        yield f"launch script, remove: {' '.join(advice.remove)}"
    outside = {name: cause.changes[name][1] for name in advice.set_outside if not KNOBS[name].megatron_lm}
    if words := variables_text({name: to for name, to in outside.items() if KNOBS[name].acts == "environment"}):
        yield f"environment: {words}"
    if words := settings_text({name: to for name, to in outside.items() if KNOBS[name].acts != "environment"}):
        yield words
    if cause.name == PartCause.ROUTER and "moe_router_force_load_balancing" in cause.changes:
        yield "the published run forces an even load, which real training cannot: balancing gives back at most this"


def share_text(cause: Cause) -> str:
    return percent(cause.share) + ("" if cause.sure else "?")
