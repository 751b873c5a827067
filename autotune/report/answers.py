"""The wall that a change answered, and what became of it: its recoverable time before and after."""

from __future__ import annotations

from analyzers.diagnosis import Wall
from autotune.looks.quantities import gib, significant
from autotune.report.path import PathStep
from policies.fixes import FIXES
from policies.situation import situation_of
from policies.trial import Status, Trial


def answered(step: PathStep) -> Wall | None:
    """The wall a fix claims most on; of a searched change the one its parent's traces show largest. None where nothing
    was seen."""
    parent, trial = step.parent, step.trial
    if parent is None:
        return None
    if parent.status is Status.OOM:
        return Wall.MEMORY
    fix = FIXES.get(trial.proposal.fix)
    claimed = fix.claimed_us(situation_of(parent)) if fix else None
    if claimed:
        return claimed[0]
    findings = parent.analysis.diagnosis.walls if parent.analysis else []
    largest = max(findings, key=lambda finding: finding.recoverable_us, default=None)
    return largest.wall if largest else None


def before_and_after(step: PathStep) -> str:
    """`memory: 556 → 63.0 ms`, R of the wall in the traced step of the parent and of the trial; `memory: out of memory
    → 0.660 GiB` where it is what did not fit."""
    wall = answered(step)
    if wall is None or step.parent is None:
        return ""
    if step.parent.status is Status.OOM:
        peaks = [max(outcome.peak_gib) for outcome in step.trial.outcomes if outcome.peak_gib]
        return f"{wall}: out of memory → {gib(max(peaks)) if peaks else 'runs'}"
    return f"{wall}: {_recoverable_ms(step.parent, wall)} → {_recoverable_ms(step.trial, wall)} ms"


def _recoverable_ms(trial: Trial, wall: Wall) -> str:
    if trial.analysis is None:
        return "not traced"
    finding = trial.analysis.diagnosis.finding(wall)
    return significant(finding.recoverable_us / 1e3 if finding else 0.0)
