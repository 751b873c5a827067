"""Renders a study's events as one or two lines of text each, for a terminal, a log file or a pipe."""

from __future__ import annotations

from functools import singledispatch
from statistics import median

from analyzers.diagnosis import Wall
from autotune.looks.acting import acting_changes
from autotune.looks.fix_names import NAMED, is_spelled_out, names_text, shares_text
from autotune.looks.quantities import (
    changes_text,
    counted,
    duration,
    gib,
    interval,
    significant,
    speedup_text,
    tokens_per_s,
)
from autotune.looks.reasons import end_text, proposal_text, sentence
from autotune.looks.recipes import fidelity_words
from autotune.looks.releases import releases_text
from autotune.tuning.events import (
    AblationStarted,
    Analyzed,
    BurstFinished,
    BurstLost,
    BurstStarted,
    Ended,
    Event,
    Judged,
    Probed,
    Proposed,
    Refused,
    StudyStarted,
    TunerStarted,
)
from autotune.tuning.history import History
from autotune.tuning.speedup import Speedup, speedup
from policies.reason import ReasonKind
from policies.trial import Status, Trial
from trainer.burst import Failure, Outcome
from trainer.probe.links import Links

MAX_CLOCKS_APART_S, MAX_FOLDER_LAG_S = 0.5, 3.0  # values above these are shown
NOT_AT_FULL_SIZE = "not measured at full size"  # shown with a best recipe of which only proxies ran
FAILED = {Status.OOM: "out of memory", Status.FAILED: "it does not run"}  # the burst's own line has the evidence


@singledispatch
def line_of(event: Event, history: History) -> str | None:
    """Returns one or two lines for an event; None for a lesson, and if the line of another event says the same."""
    return None


@line_of.register
def _(event: StudyStarted, history: History) -> str:
    """Names the releases as well where ranks of ours run in this environment."""
    burst, started = event.recipe.get("burst", {}), f"study {event.name} started, seed {event.seed}"
    here = burst.get("engine") == "megatron" and burst.get("launcher") == "local"
    return f"{started}\n{releases_text(event.environment)}" if here else started


@line_of.register
def _(event: TunerStarted, history: History) -> str | None:
    """Returns None at the start of a study, for which StudyStarted has a line."""
    if not history.proposals:
        return None
    return f"resuming after {counted(len(history.finished), 'burst')} of {event.budget}"


@line_of.register
def _(event: Probed, history: History) -> str:
    if event.rows:
        return probe_in_words(event)
    if event.links is None:
        return f"the links between the nodes could not be measured: {failure_in_words(event.failure)}"
    return f"links between the nodes: {links_in_words(event.links)}"


@line_of.register
def _(event: Proposed, history: History) -> str:
    proposal = history.proposals[event.trial][0]
    is_sized = event.fidelity is not None or (event.reason is not None and event.reason.kind is ReasonKind.FULL_SIZE)
    size = f", {fidelity_words(event.fidelity)}" if is_sized else ""
    lines = [f"[{event.phase}] trial {event.trial}: {names_text(proposal, event.changes)}{size}"]
    if event.changes and not is_spelled_out(proposal, event.changes):
        lines.append(f"  changes: {changes_text(acting_changes(proposal.recipe, event.changes))}")
    if shares := shares_text(proposal):
        lines.append(f"  shares: {shares}")
    return "\n".join([*lines, f"  why: {proposal_text(event)}"])


@line_of.register
def _(event: Refused, history: History) -> str:
    return f"  not run: {failure_in_words(event.outcome.failure)}"


@line_of.register
def _(event: BurstStarted, history: History) -> str | None:
    return f"  burst {event.burst}: repeat of trial {event.trial}" if event.purpose == "repeat" else None


@line_of.register
def _(event: BurstFinished, history: History) -> str:
    return f"  burst {event.burst}: {outcome_in_words(event.outcome, history.unit)}"


@line_of.register
def _(event: BurstLost, history: History) -> str:
    whose = "a rank was killed from outside" if event.failure.killed else "not caused by the recipe"
    return f"  burst {event.burst} lost, {whose}: {failure_in_words(event.failure)}"


@line_of.register
def _(event: Analyzed, history: History) -> str:
    if event.analysis is None:
        return f"  no analysis: {event.because}"
    diagnosis = event.analysis.diagnosis
    led_to = f" ({diagnosis.headline})" if diagnosis.cause is not None else ""
    return f"  wall: {diagnosis.wall}{led_to}: {diagnosis.because}"


@line_of.register
def _(event: Judged, history: History) -> str:
    failed = event.status in FAILED
    return f"  {event.verdict}: {FAILED[event.status] if failed else _verdict(event)}"


def _verdict(event: Judged) -> str:
    return sentence(event.reason) if event.reason else event.because


@line_of.register
def _(event: AblationStarted, history: History) -> str:
    return f"ablation of trial {event.tuned}: up to {counted(event.bursts, 'burst')} without some of its changes"


@line_of.register
def _(event: Ended, history: History) -> str:
    return f"{event.status}: {end_text(event)}"


def probe_in_words(event: Probed) -> str:
    """Returns the number of figures of a probe, its cost, and the ranks that it found slow."""
    found = [row for row in event.rows if row.measured is not None]
    slow = {row.slow_rank: row for row in found if row.slow_rank is not None}
    text = f"probed the cluster: {counted(len(found), 'figure')} of {len(event.rows)} in {event.seconds:.0f} s"
    text += f" on {counted(event.ranks, 'rank')}"
    for rank, row in slow.items():
        text += f"; rank {rank} takes {significant(row.slow_by or 1.0, 3)} times as long as others ({row.name})"
    return text


def links_in_words(links: Links) -> str:
    """Returns `5 GB/s per rank, 31 us per 4 KiB all-reduce (gloo over eth0, 2 nodes)`; clock and folder lags only above
    the limits."""
    over = f" over {', '.join(links.interfaces)}" if any(links.interfaces) else ""
    rate, latency = significant(links.bandwidth_gb_s, 3), significant(links.latency_us, 3)
    where = f"{links.backend}{over}, {counted(links.nodes, 'node')}"
    text = f"{rate} GB/s per rank, {latency} us per 4 KiB all-reduce ({where})"
    if links.clocks_apart_s > MAX_CLOCKS_APART_S:
        text += (
            f"; their clocks are {significant(links.clocks_apart_s, 2)} s apart: the order of failures depends on them"
        )
    if links.folder_lag_s > MAX_FOLDER_LAG_S:
        text += f"; a file appears on the other nodes after {significant(links.folder_lag_s, 2)} s"
    return text


def outcome_in_words(outcome: Outcome, unit: str) -> str:
    """Returns step time, throughput and peak memory of a burst, or its failure."""
    if outcome.failure is not None:
        return failure_in_words(outcome.failure)
    parts = [f"{duration(median(outcome.step_us))} per step"] if outcome.step_us else []
    if outcome.tokens_per_s_per_gpu:
        parts.append(tokens_per_s(outcome.tokens_per_s_per_gpu, unit=unit))
    if outcome.peak_gib:
        limit = f" of {gib(outcome.limit_gib)}" if outcome.limit_gib else ""
        parts.append(f"peak {gib(max(outcome.peak_gib))}{limit}")
    return ", ".join(parts) or "no figures"


def failure_in_words(failure: Failure | None) -> str:
    if failure is None:
        return "no failure"
    where = "" if failure.rank is None else f" on rank {failure.rank}"
    when = "" if failure.phase is None else f" in {failure.phase}"
    return f"{failure.kind}{when}{where}: {failure.evidence}"


def cost_in_words(history: History) -> str:
    """Returns `13 bursts, 0.21 GPU-hours`; simulated hours are marked, and hours of an idle allocation are separate."""
    simulated = "simulated " if history.simulated else ""
    hours = f"{significant(history.gpu_hours, 2)} {simulated}{history.unit}-hours"
    idle = significant(history.idle_gpu_hours, 2)
    waited = f", plus {idle} {history.unit}-hours in which the allocation waited for the tuner"
    smaller = sum(hours for size, hours in history.fidelities.items() if size != history.full_size)
    sized = f" ({significant(smaller, 2)} of them for proxies)" if smaller else ""
    return f"{counted(len(history.finished), 'burst')}, {hours}{sized}{waited if history.idle_gpu_hours else ''}"


def best_in_words(history: History) -> str:
    """Returns the best trial so far and its speed-up over the reference, with its interval, marked if it is
    provisional."""
    best, gained = history.best, best_speedup(history)
    if best is None or history.reference is None:
        return "nothing runs yet"
    name = names_text(best.proposal, best.changes, most=NAMED)
    named = f"trial {best.number} ({name})" + (", provisional verdict" if best.provisional else "")
    named += f", {NOT_AT_FULL_SIZE}" if history.only_proxies else ""
    if gained is None or best.number == history.reference.number:
        return named
    return f"{named}, {speedup_text(gained.value)} trial {history.reference.number} ({interval_in_words(gained)})"


def best_speedup(history: History) -> Speedup | None:
    """Returns the speed-up of the best over the reference; exactly 1 if the reference is the best. None
    if nothing ran, or no two bursts of one size compare them."""
    best, reference = history.best, history.reference
    if best is None or reference is None:
        return None
    return speedup(best, over=reference, trials=history.trials)


def interval_in_words(gained: Speedup) -> str:
    """Returns `95 % interval 1.21–1.34`, with the number of bursts if it is provisional."""
    text = interval(gained.low, gained.high)
    return f"{text}, provisional: {bursts_behind(gained)}" if gained.provisional else text


def bursts_behind(gained: Speedup) -> str:
    """Returns the bursts behind a speed-up: `from 2 bursts of each`, `from 1 burst against 3`."""
    if gained.bursts == gained.over_bursts:
        return f"from {counted(gained.bursts, 'burst')} of each"
    return f"from {counted(gained.bursts, 'burst')} against {gained.over_bursts}"


def wall_text(trial: Trial | None) -> str:
    """Returns the trial's wall, or the cause of the diagnosis if no wall is named; empty without an analysis."""
    diagnosis = trial.analysis.diagnosis if trial and trial.analysis else None
    if diagnosis is None:
        return ""
    named = diagnosis.wall is not Wall.UNDETERMINED or diagnosis.cause is None
    return diagnosis.wall.value if named or diagnosis.cause is None else diagnosis.cause.name.replace("_", " ")


def wall_of(trial: Trial | None) -> Wall | None:
    """Returns the wall that a trial's traces name; None without an analysis."""
    return trial.analysis.diagnosis.wall if trial and trial.analysis else None
