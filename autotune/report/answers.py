"""The wall that a change answered, or the cause that is no wall, and what became of it: its time before and after."""

from __future__ import annotations

from analyzers.diagnosis import Wall
from autotune.looks.quantities import gib, significant
from autotune.report.path import PathStep
from policies.fixes import FIXES
from policies.situation import BUBBLE_PART, PIPELINE_CAUSES, Situation, situation_of
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
    → 0.660 GiB` where it is what did not fit; `experts load: 216 → 98.1 ms` where the step was lost to no wall."""
    wall = answered(step)
    if step.parent is None:
        return ""
    if step.parent.status is Status.OOM:
        peaks = [max(outcome.peak_gib) for outcome in step.trial.outcomes if outcome.peak_gib]
        return f"{wall}: out of memory → {gib(max(peaks)) if peaks else 'runs'}"
    if cause := _cause(step, situation_of(step.parent)):
        return f"{cause.replace('_', ' ')}: {_lost_ms(step.parent, cause)} → {_lost_ms(step.trial, cause)}"
    if wall is None:
        return ""
    return f"{wall}: {_recoverable_ms(step.parent, wall)} → {_recoverable_ms(step.trial, wall)} ms"


def _cause(step: PathStep, before: Situation) -> str | None:
    """What is lost to no wall, where a fix claims most on it, or a searched change follows a verdict of it."""
    fix = FIXES.get(step.trial.proposal.fix)
    if fix is not None:
        claims = {part: claim.fraction for claim in fix.claims for part in claim.parts}
        lost = {part: us * claims.get(part, 0.0) for part, us in before.of_no_wall.items()}
        most = max(lost, key=lambda part: lost[part])
        claimed = fix.claimed_us(before)
        return most if claimed and 2 * lost[most] >= claimed[1] else None
    diagnosis = before.analysis.diagnosis if before.analysis else None
    if diagnosis is None or diagnosis.wall is not Wall.UNDETERMINED or diagnosis.cause is None:
        return None
    return diagnosis.cause.name if diagnosis.cause.lost_us > 0 else None


def _lost_ms(trial: Trial, cause: str) -> str:
    """Of pipelines all that they wait, whichever cause is named."""
    if trial.analysis is None:
        return "not traced"
    seen = situation_of(trial)
    us = max(map(seen.lost_us, (cause, BUBBLE_PART) if cause in PIPELINE_CAUSES else (cause,)))
    return f"{significant(us / 1e3)} ms" if us > 0 else "not seen"


def _recoverable_ms(trial: Trial, wall: Wall) -> str:
    if trial.analysis is None:
        return "not traced"
    finding = trial.analysis.diagnosis.finding(wall)
    return significant(finding.recoverable_us / 1e3 if finding else 0.0)
