"""What to do about a loss that no wall stands for, or about a wall that some ranks make: fixes, walls, and words.

The analyzers say what a verdict without a wall comes down to (`Cause.name`); here each is given what answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analyzers.diagnosis import Cause, Diagnosis, Wall


@dataclass(frozen=True, kw_only=True)
class Cure:
    """fixes: files of policies/fixes that act on it, beside those of `wall`; wall: whose knobs act on it, if one's do;
    said: what to do that is no setting."""

    fixes: tuple[str, ...] = ()
    wall: Wall | None = None
    said: str = ""


NODE = "Look at {} first: what else runs there, its clocks, its cores' binding; then at what its host does then."
CURES: Mapping[str, Cure] = {
    "late_host": Cure(wall=Wall.HOST, said=NODE),
    "late_allocator": Cure(wall=Wall.MEMORY, fixes=("expandable_segments",)),
    "experts_load": Cure(
        wall=Wall.COMMUNICATION,
        fixes=("even_experts", "less_expert_parallel"),
        said="The router decides the load: a balancing loss, a capacity, or more experts on each rank even it out.",
    ),
    "slow_device": Cure(
        said="No setting of the recipe makes up for a slow device: check the clocks, power and heat of {}, and leave "
        "its node out if it stays slow."
    ),
    "uneven_work": Cure(said="Sequences of even length, or packed ones, would even it out."),
    "slow_links": Cure(
        wall=Wall.COMMUNICATION, said="Check the links of {}: the same transfers take longer there than elsewhere."
    ),
    "late_copies": Cure(wall=Wall.MEMORY),
    "bubble": Cure(
        wall=Wall.COMMUNICATION,
        fixes=("interleaved_pipeline", "micro_batch_down", "less_pipeline_parallel"),
        said="More micro batches a step, or more chunks a stage (VPP), shorten it; so do even stages.",
    ),
    "uneven_stages": Cure(
        wall=Wall.COMMUNICATION,
        fixes=("even_stages", "interleaved_pipeline", "less_pipeline_parallel"),
        said="Give the slowest stage fewer layers.",
    ),
}
NOTHING = Cure()


def cure_of(diagnosis: Diagnosis) -> Cure:
    """What answers the cause of a verdict; nothing where it has none."""
    return CURES.get(diagnosis.cause.name, NOTHING) if diagnosis.cause is not None else NOTHING


def said_of(cause: Cause) -> str:
    """What to do about it that is no setting, with the ranks it is about; empty where there is nothing to say."""
    ranks = ", ".join(f"rank {rank}" for rank in cause.ranks[:2]) or "the late ranks"
    more = f" and {len(cause.ranks) - 2} more" if len(cause.ranks) > 2 else ""
    return CURES.get(cause.name, NOTHING).said.format(f"{ranks}{more}")


def walls_of(diagnosis: Diagnosis) -> set[Wall]:
    """The walls whose knobs act on what the step is lost to: the verdict's, its cause's, or those too close to tell;
    empty where nothing is named."""
    if diagnosis.wall is not Wall.UNDETERMINED:
        return {diagnosis.wall}
    wall = cure_of(diagnosis).wall
    return {wall} if wall is not None else set(diagnosis.between)
