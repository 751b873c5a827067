"""Checks whether a requested change acted, since a knob without effect would be judged on noise.

`Outcome.acting`, which the built model reports, is checked first, then the evidence that the fix requires of the trace.
A change without effect makes its trial a no-op.
"""

from __future__ import annotations

from typing import Any

from policies.fixes import FIXES
from policies.reason import Reason, ReasonKind
from policies.situation import situation_of
from policies.trial import Trial
from trainer.values import as_reported


def no_effect(trial: Trial, parent: Trial | None) -> Reason | None:
    """Returns why the trial's change did not act; None if it did, or if there is no evidence."""
    return _not_acting(trial) or _not_shown(trial, parent)


def _not_acting(trial: Trial) -> Reason | None:
    acting = trial.outcomes[0].acting
    idle = [
        {"knob": knob, "wanted": as_reported(wanted), "built": acting[knob]}
        for knob, wanted in _wanted(trial).items()
        if knob in acting and as_reported(acting[knob]) != as_reported(wanted)
    ]
    return Reason(kind=ReasonKind.NOT_ACTING, figures={"knobs": idle}) if idle else None


def _wanted(trial: Trial) -> dict[str, Any]:
    """Returns the changed knobs with the values that the bursts ran with; a proxy has its own pipeline."""
    if trial.fidelity is None:
        return {knob: to for knob, (_, to) in trial.changes.items()}
    return {knob: trial.ran.knob(knob) for knob in trial.changes}


def _not_shown(trial: Trial, parent: Trial | None) -> Reason | None:
    # effects of several fixes may cancel
    fix = FIXES.get(trial.proposal.fix) if len(trial.proposal.fixes) <= 1 else None
    if parent is not None and parent.fidelity != trial.fidelity:
        return None
    if fix is None or fix.proof is None or parent is None or trial.analysis is None or parent.analysis is None:
        return None
    missing = fix.proof.missing(situation_of(parent), situation_of(trial))
    return Reason(kind=ReasonKind.NOT_IN_TRACE, figures={"missing": missing}) if missing else None
