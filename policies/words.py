"""Why a recipe is proposed, in words: the wall, its number, the fix and what it promises."""

from __future__ import annotations

from analyzers.diagnosis import Wall
from policies.consider import Candidate
from policies.situation import Situation
from policies.view import View

# `WallFinding.parts` and walls as the subject of "... for 31 % of the step".
PART_WORDS = {
    "ep_dispatch": "EP dispatch is exposed",
    "ep_combine": "EP combine is exposed",
    "ep_notify": "EP notify is exposed",
    "all_to_all": "an all-to-all is exposed",
    "tp": "TP communication is exposed",
    "cp": "CP communication is exposed",
    "pp": "PP send/recv is exposed",
    "dp": "DP communication is exposed",
    "bubble": "the pipeline is idle (bubble)",
    "experts_load": "ranks wait for the one whose experts have most to do",
    "uneven_stages": "pipeline stages wait for the one that has most to do",
    "recompute": "forward work is recomputed",
    "offload_copies": "copies of offloaded tensors are exposed",
    "allocator": "the allocator goes back to the driver",
    "garbage_collection": "the device waits for garbage collection",
    "launching": "the device waits for launches",
    "operators": "the device waits for the framework's operators",
    "python": "the device waits for Python",
    "outside_calls": "the device waits for the host's code between launches",
}
WALL_WORDS = {
    Wall.MEMORY: "memory costs time (recompute, offload, retries)",
    Wall.COMMUNICATION: "communication is exposed",
    Wall.HOST: "the device waits for the host",
    Wall.COMPUTE: "compute runs below the attainable rate",
    Wall.UNDETERMINED: "time is lost to several walls",
}


def because_of_wall(candidate: Candidate, view: View) -> str:
    """Evidence first, then the fix and what it promises. What it changes stands in the proposal's recipe."""
    fits = f"; memory: {candidate.forecast.because}" if candidate.forecast.peak_gib is not None else ""
    if candidate.wall is None:
        return f"{candidate.fix.title}: a rule of thumb of this phase, without a trace{fits}"
    return (
        f"{_evidence(candidate, view.situation)}; {candidate.fix.title} claims "
        f"{_ms(candidate.claimed_us)} ms of it: {100 * candidate.gain:.1f} % expected, "
        f"at most {100 * candidate.bound:.1f} %{fits}"
    )


def leading_wall(situation: Situation) -> str | None:
    """The wall that could give most back, or what the step is lost to beside the walls, with its number; None without a
    trace."""
    diagnosis = situation.analysis.diagnosis if situation.analysis else None
    if diagnosis is not None and diagnosis.cause is not None and diagnosis.cause.lost_us > 0:
        return f"{diagnosis.cause.headline} for {_share(diagnosis.cause.lost_us, situation)}"
    findings = diagnosis.walls if diagnosis else []
    if not findings:
        return None
    first = max(findings, key=lambda finding: finding.recoverable_us)
    return f"{WALL_WORDS[first.wall]} for {_share(first.recoverable_us, situation)}"


def failure_in_words(situation: Situation, number: int) -> str:
    failure = situation.failure
    if failure is None:
        return f"trial {number} does not fit its memory"
    phase = f" in {failure.phase.value}" if failure.phase else ""
    rank = f" on rank {failure.rank}" if failure.rank is not None else ""
    limit = f" (limit {situation.limit_gib:.2f} GiB)" if situation.limit_gib else ""
    return f"trial {number} ran out of memory{phase}{rank}{limit}"


def _evidence(candidate: Candidate, situation: Situation) -> str:
    """The parts the fix acts on, largest first; the wall as a whole when it acts on no part by name."""
    assert candidate.wall is not None
    names = [part for claim in candidate.fix.claims if claim.wall is candidate.wall for part in claim.parts]
    sizes = {part: situation.recoverable_us(candidate.wall, (part,)) for part in dict.fromkeys(names)}
    shown = sorted((part for part in sizes if sizes[part] > 0), key=lambda part: -sizes[part])[:2]
    if not shown:
        whole = situation.recoverable_us(candidate.wall)
        return f"{WALL_WORDS[candidate.wall]} for {_share(whole, situation)}"
    return ", ".join(f"{PART_WORDS.get(part, part)} for {_share(sizes[part], situation)}" for part in shown)


def _share(us: float, situation: Situation) -> str:
    share = us / situation.step_us if situation.step_us else 0.0
    return f"{100 * share:.0f} % of the step ({_ms(us)} of {_ms(situation.step_us)} ms)"


def _ms(us: float) -> str:
    return f"{us / 1000:.3g}" if us < 1e6 else f"{us / 1000:.0f}"
