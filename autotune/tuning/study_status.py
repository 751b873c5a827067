"""Summarises a study at one moment: what runs and why, the best so far, the cost, the expected end.

It is made from the journal's history, the clock, and whether a tuner holds the study. The live panel, the page of a
running study, `status` and `watch` show the rows of `rows_of`. Times are seconds since the epoch.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from statistics import fmean
from typing import Any, Literal

import msgspec

from autotune.looks.fix_names import NAMED, names_text, parts_of
from autotune.looks.quantities import NONE, UNMEASURED, first_changes, tokens_per_s
from autotune.looks.reasons import end_text, proposal_text
from autotune.tuning.events import BurstStarted, EndStatus, Proposed, Purpose
from autotune.tuning.history import History
from autotune.tuning.lines import best_in_words, best_speedup, cost_in_words, wall_of
from autotune.tuning.provisional import with_provisional_verdicts
from autotune.tuning.study import OTHER, RESOLVED
from policies.noise import throughput
from policies.trial import FixShare, Phase, Proposal

State = Literal["running", "suspended", "ended", "stopped", "unknown"]
RESUMABLE: tuple[EndStatus, ...] = ("interrupted", "budget")
RATE = "rate"  # name of the row with the best recipe's throughput
ENDS = {"budget": "ended by its budget"}  # other statuses are words already


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The running burst; `since` is its start, `usual_s` the mean time from the end of one burst to that of the
    next."""

    burst: int
    trial: int
    purpose: Purpose
    since: float
    usual_s: float | None


class TrialInProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The recipe on trial: its fixes, changes and reason."""

    trial: int
    phase: Phase
    fix: str
    fixes: tuple[FixShare, ...]
    names: str
    changes: dict[str, tuple[Any, Any]]
    because: str


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The last accepted recipe and its speed-up over the study's reference.

    `provisional`: accepted on its bursts so far, before its repeats; `speedup_provisional`: fewer than two bursts per
    side.
    """

    trial: int
    fix: str
    provisional: bool = False
    speedup_provisional: bool = False
    tokens_per_s_per_gpu: float | None
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    wall: str | None
    words: str
    rate: str


class StudyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `status --json` and `watch --json`.

    `state`: `stopped` if no tuner runs the study and it has not ended, `unknown` if that cannot be determined; `trying`
    is null between trials.
    """

    schema: int = 1
    study: str
    folder: str
    state: State
    status: EndStatus | None
    because: str
    started_at: float
    tuner_at: float
    last_event_at: float = msgspec.field(name="said_at")  # the name that readers of the document know
    bursts: int
    budget: int | None
    max_gpu_hours: float | None
    until: float | None
    gpu_hours: float
    cost: str
    measured_at_full_size: bool = True
    simulated: bool
    running: Running | None
    trying: TrialInProgress | None
    best: Best | None
    ends_at: float | None
    host: str | None
    process: int | None
    resume: str | None


def study_status(
    history: History, *, folder: str, now: float, held: bool | None, suspended: bool = False
) -> StudyStatus:
    """Returns the summary of a study.

    `held`: whether a tuner holds the folder, None if unknown; `suspended`: whether a signal has stopped that tuner.
    """
    history = with_provisional_verdicts(history)
    tuner, ended, study = history.tuner, history.ended, history.study
    state = _state(history, held, suspended)
    resumable = state == "stopped" or (ended is not None and ended.status in RESUMABLE)
    return StudyStatus(
        study=study.name if study else "",
        folder=folder,
        state=state,
        status=ended.status if ended else None,
        because=end_text(ended) if ended else "",
        started_at=study.at if study else 0.0,
        tuner_at=tuner.at if tuner else study.at if study else 0.0,
        last_event_at=history.last_event_at,
        bursts=len(history.finished),
        budget=tuner.budget if tuner else None,
        max_gpu_hours=tuner.max_gpu_hours if tuner else None,
        until=tuner.until if tuner else None,
        gpu_hours=history.gpu_hours,
        cost=cost_in_words(history),
        measured_at_full_size=not history.only_proxies,
        simulated=history.simulated,
        running=_running(history) if ended is None else None,
        trying=_trying(history),
        best=_best(history),
        ends_at=_ends_at(history, now) if state == "running" else None,
        host=tuner.host if tuner else None,
        process=tuner.process if tuner else None,
        resume=resume_command(history, folder) if resumable else None,
    )


def resume_command(history: History, folder: str) -> str:
    """Returns the command that resumes a study, with twice its budget if that is spent."""
    tuner = history.tuner
    if history.study is not None and history.study.other is not None:
        ends = [f"{folder}/{RESOLVED}", f"{folder}/{OTHER}"]
        return shlex.join(["moe-autotune", "bisect", *ends, "--study", folder, "--resume", *_limits(history)])
    words = ["moe-autotune", "run", tuner.recipe if tuner else f"{folder}/recipe.yaml", "--study", folder, "--resume"]
    smaller = history.study.recipe.get("tune", {}).get("proxy_nodes") if history.study is not None else None
    proxies = ["--proxy-nodes", str(smaller)] if smaller is not None else []
    return shlex.join([*words, *proxies, *_limits(history)])


def _limits(history: History) -> list[str]:
    """Returns the limits of the tuner's last run as options, without its deadline, and with twice the budget if it is
    spent."""
    tuner = history.tuner
    if tuner is None:
        return []
    spent = len(history.finished) + tuner.ablate >= tuner.budget
    hours = ["--max-gpu-hours", f"{tuner.max_gpu_hours:g}"] if tuner.max_gpu_hours is not None else []
    ablation = ["--ablate", str(tuner.ablate)] if tuner.ablate else []
    return ["--budget", str(tuner.budget * 2 if spent else tuner.budget), *hours, *ablation]


def rows_of(status: StudyStatus, now: float) -> list[tuple[str, str]]:
    """Returns (name, text) rows, most important first; empty rows are left out."""
    rows = [
        ("state", _state_words(status, now)),
        ("phase", str(status.trying.phase) if status.trying and status.status is None else ""),
        ("burst", _burst_words(status, now)),
        ("trying", _trying_words(status) if status.status is None else ""),
        ("because", _why_words(status) if status.status is None else ""),
        ("best", status.best.words if status.best else "nothing runs yet"),
        (RATE, status.best.rate if status.best else ""),
        ("its wall", (status.best.wall or "not known") if status.best else ""),
        ("cost", status.cost),
        ("ends", _end_words(status, now)),
        ("resume", status.resume or ""),
        ("simulated", UNMEASURED if status.simulated else ""),
    ]
    return [(name, text) for name, text in rows if text]


def clock_words(at: float, now: float, *, seconds: bool = True) -> str:
    """Returns `08:02:11`, or `08:02` without seconds; on another day with the date."""
    moment, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    clock = "%H:%M:%S" if seconds else "%H:%M"
    return moment.strftime(clock if moment.date() == today.date() else f"%Y-%m-%d {clock}")


def span_words(seconds: float) -> str:
    """Returns `45 s`, `12 min`, `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{max(0, round(seconds))} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _state(history: History, held: bool | None, suspended: bool) -> State:
    if history.ended is not None:
        return "ended"
    if held is None:
        return "unknown"
    if not held:
        return "stopped"
    return "suspended" if suspended else "running"


def _running(history: History) -> Running | None:
    burst = history.open_burst
    if burst is None:
        return None
    usual = fmean(history.pace_s) if history.pace_s else None
    since = max(burst.at, history.tuner.at if history.tuner else 0.0, *(lost.at for lost in history.lost), 0.0)
    return Running(burst=burst.burst, trial=burst.trial, purpose=burst.purpose, since=since, usual_s=usual)


def _trying(history: History) -> TrialInProgress | None:
    proposal, proposed = _proposed(history, history.open_burst) or (None, None)
    if proposal is None or proposed is None or (history.open_burst is None and _is_judged(history, proposed.trial)):
        return None
    return TrialInProgress(
        trial=proposed.trial,
        phase=proposed.phase,
        fix=proposed.fix,
        fixes=parts_of(proposal, proposed.changes),
        names=names_text(proposal, proposed.changes, most=NAMED),
        changes=proposed.changes,
        because=proposal_text(proposed),
    )


def _proposed(history: History, burst: BurstStarted | None) -> tuple[Proposal, Proposed] | None:
    number = burst.trial if burst else max(history.proposals, default=None)
    return None if number is None else history.proposals[number]


def _is_judged(history: History, trial: int) -> bool:
    known = history.attempted.get(trial)
    return known is not None and known.verdict is not None and not known.provisional


def _best(history: History) -> Best | None:
    best, reference = history.best, history.reference
    if best is None:
        return None
    gained = best_speedup(history) if reference is not None and reference.number != best.number else None
    wall = wall_of(best)
    rate = throughput(best)
    return Best(
        trial=best.number,
        fix=best.proposal.fix,
        provisional=best.provisional,
        speedup_provisional=gained is not None and gained.provisional,
        tokens_per_s_per_gpu=rate,
        speedup=gained.value if gained else None,
        speedup_ci=(gained.low, gained.high) if gained else None,
        wall=str(wall) if wall else None,
        words=best_in_words(history),
        rate=tokens_per_s(rate, unit=history.unit) if rate else "",
    )


def _ends_at(history: History, now: float) -> float | None:
    """Returns the time at which the limits end the study, at the mean pace of its bursts; None before the first has
    ended."""
    tuner = history.tuner
    if tuner is None or not history.pace_s:
        return None
    left = float(max(0, tuner.budget - len(history.finished)))
    if tuner.max_gpu_hours is not None and history.gpu_hours > 0:
        each = history.gpu_hours / len(history.finished)
        left = min(left, max(0.0, tuner.max_gpu_hours - history.gpu_hours) // each)
    end = max(history.finished[-1].at, tuner.at) + left * fmean(history.pace_s)
    return max(now, end if tuner.until is None else min(end, tuner.until))


def _state_words(status: StudyStatus, now: float) -> str:
    said = clock_words(status.last_event_at, now)
    where = f", process {status.process} on {status.host}" if status.process is not None else ""
    if status.state == "running":
        return f"running since {clock_words(status.tuner_at, now)}{where}"
    if status.state == "suspended":
        go_on = f"kill -CONT {status.process}" if status.process is not None else "CONT"
        return f"suspended by a signal (continues with {go_on}){where}; its last journal entry is from {said}"
    if status.state == "ended":
        return f"{end_words(status.status)} at {said}: {status.because}"
    if status.state == "stopped":
        within = f" in burst {status.running.burst}" if status.running else ""
        return f"not running: killed{within}; its last journal entry is from {said}"
    return f"not known from here (the folder's locks cannot be read); its last journal entry is from {said}{where}"


def end_words(status: str | None) -> str:
    """Returns the status of an ended study as text."""
    return ENDS.get(status or "", status or NONE)


def _burst_words(status: StudyStatus, now: float) -> str:
    of = f" of {status.budget}" if status.budget is not None else ""
    running = status.running
    if running is None or status.state == "stopped":
        return f"{status.bursts}{of} done"
    gone = f" ({span_words(now - running.since)})" if now - running.since >= 1 else ""
    usual = f", usually {span_words(running.usual_s)}" if running.usual_s is not None else ""
    return f"{running.burst}{of}, since {clock_words(running.since, now)}{gone}{usual}"


def _trying_words(status: StudyStatus) -> str:
    trying = status.trying
    if trying is None:
        return "nothing yet: choosing the next recipe" if status.state == "running" else ""
    changes = f": {first_changes(trying.changes)}" if trying.changes else ""
    return f"trial {trying.trial}, {trying.names}{changes}"


def _why_words(status: StudyStatus) -> str:
    if status.running is not None and status.running.purpose == "repeat":
        return "repeated, to be sure"
    return status.trying.because if status.trying else ""


def _end_words(status: StudyStatus, now: float) -> str:
    if status.state != "running" or status.budget is None:
        return ""
    if status.ends_at is None:
        return "not known until the first burst has ended"
    at = clock_words(status.ends_at, now, seconds=False)
    return f"about {at} if the whole budget is used, earlier if it converges"
