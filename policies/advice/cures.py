"""Answers to a loss that is not a wall's, or to a wall on some ranks only.

The analyzers name the cause of a verdict without a wall (`Cause.name`); this table gives the fixes, the wall and the
advice for each cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analyzers.diagnosis import Cause, Diagnosis, Wall


@dataclass(frozen=True, kw_only=True)
class Cure:
    """The answer to a cause.

    `fixes` are the files of policies/fixes that act on it; without any, those of `wall` do. `wall` is the wall whose
    knobs act on it, if any; `advice` is a sentence on what to do besides the fixes.
    """

    fixes: tuple[str, ...] = ()
    wall: Wall | None = None
    advice: str = ""


NODE = "Check {} first: other programs there, its clocks, its binding to cores; then the activity of its host."
CURES: Mapping[str, Cure] = {
    "late_host": Cure(wall=Wall.HOST, advice=NODE),
    "late_allocator": Cure(wall=Wall.MEMORY, fixes=("expandable_segments",)),
    "experts_load": Cure(
        wall=Wall.COMMUNICATION,
        fixes=("even_experts", "less_expert_parallel"),
        advice="A balancing loss of the router, an expert capacity or more experts per rank even out the load.",
    ),
    "slow_device": Cure(
        advice="No setting of the recipe makes up for a slow device: check the clocks, power and heat of {}, and leave "
        "its node out if it stays slow."
    ),
    "uneven_work": Cure(advice="Sequences of equal length, or packed ones, would even out the work of the ranks."),
    "slow_links": Cure(
        wall=Wall.COMMUNICATION, advice="Check the links of {}: the same transfers take longer there than elsewhere."
    ),
    "late_copies": Cure(wall=Wall.MEMORY),
    "bubble": Cure(
        wall=Wall.COMMUNICATION,
        fixes=("interleaved_pipeline", "micro_batch_down", "less_pipeline_parallel"),
        advice="More micro batches per step, more chunks per rank (VPP) and even stages shorten the bubble.",
    ),
    "uneven_stages": Cure(
        wall=Wall.COMMUNICATION,
        fixes=("even_stages", "interleaved_pipeline", "less_pipeline_parallel"),
        advice="Give the slowest stage fewer layers.",
    ),
}
NOTHING = Cure()


def cure_of(diagnosis: Diagnosis) -> Cure:
    """Returns the answer to the cause of a verdict; NOTHING if the verdict has no cause."""
    return CURES.get(diagnosis.cause.name, NOTHING) if diagnosis.cause is not None else NOTHING


def advice_on(cause: Cause) -> str:
    """Returns the sentence of advice on a cause, with the ranks concerned; empty if there is none."""
    ranks = ", ".join(f"rank {rank}" for rank in cause.ranks[:2]) or "the late ranks"
    more = f" and {len(cause.ranks) - 2} more" if len(cause.ranks) > 2 else ""
    return CURES.get(cause.name, NOTHING).advice.format(f"{ranks}{more}")


def walls_of(diagnosis: Diagnosis) -> set[Wall]:
    """Returns the walls whose knobs act on the loss: the verdict's, its cause's, or several that are too close to
    distinguish. Empty if the diagnosis names none."""
    if diagnosis.wall is not Wall.UNDETERMINED:
        return {diagnosis.wall}
    wall = cure_of(diagnosis).wall
    return {wall} if wall is not None else set(diagnosis.between)
