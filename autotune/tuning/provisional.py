"""Judges the open trials of a study by their bursts so far.

A trial is open from its first burst to its verdict, which repeats may delay. A reader of an unfinished or interrupted
study gets a verdict marked provisional.
"""

from __future__ import annotations

from autotune.tuning.effect import no_effect
from autotune.tuning.events import Judged
from autotune.tuning.history import History
from autotune.tuning.judge import judge
from policies.trial import Status, Trial, Verdict


def with_provisional_verdicts(history: History) -> History:
    """Returns the history with a provisional verdict on every open trial; the same history if none is open."""
    open_trials = [trial for trial in history.attempted.values() if trial.verdict is None]
    if not open_trials:
        return history
    found = history.copy()
    for trial in open_trials:
        found.judge_provisionally(_judged(trial, found))
    return found


def _judged(trial: Trial, history: History) -> Judged:
    parent = history.attempted.get(trial.proposal.parent) if trial.proposal.parent is not None else None
    if trial.status is Status.OK and (idle := no_effect(trial, parent)):
        return Judged(trial=trial.number, status=Status.NOOP, verdict=Verdict.REJECTED, reason=idle)
    judgement = judge(trial, against=history.best, trials=[*history.trials, trial])
    return Judged(trial=trial.number, status=trial.status, verdict=judgement.verdict, reason=judgement.reason)
