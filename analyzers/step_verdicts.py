"""Judges each step by itself, and adds to the verdict on the average step which steps differ from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from analyzers.diagnosis import Diagnosis, JudgedStep, TraceReport, Wall
from analyzers.one_rank.digest import Digest
from analyzers.one_rank.rank_step import RankStep
from analyzers.ranks.job import Job
from analyzers.verdict import conclude
from analyzers.walls import find_walls
from analyzers.wording import ms

STEPS_NAMED = 4


def judge_steps(job: Job) -> list[list[Diagnosis]]:
    """Returns, for each rank and each of its steps, the verdict on the job reduced to that step."""
    return [[_alone(job.only(place, k)) for k in range(len(steps))] for place, steps in enumerate(job.each)]


def _alone(job: Job) -> Diagnosis:
    return conclude(job, find_walls(job))


def with_verdicts(
    report: TraceReport, each: Sequence[RankStep], verdicts: Sequence[Diagnosis], warm_up: Sequence[int]
) -> TraceReport:
    """Returns the report with each step's own wall and waiting, and the names of warm-up steps; warm_up: their
    numbers."""
    if not report.steps:
        return replace(report, span=replace(report.span, **_waiting(each[0])))
    steps = [
        replace(partition, wall=verdict.wall, because=verdict.because, **_waiting(step))
        for partition, step, verdict in zip(report.steps, each, verdicts, strict=True)
    ]
    return replace(report, steps=steps, warm_up=[steps[k].name for k in warm_up])


def _waiting(step: RankStep) -> dict[str, dict[str, float]]:
    return {"waiting_by_kind": dict(step.waiting_by_kind), "may_wait_by_kind": dict(step.may_wait_by_kind)}


def judged_steps(job: Job, digests: Sequence[Digest]) -> list[JudgedStep]:
    """Returns the steps that the job's average step is computed from."""
    return [
        JudgedStep(trace=place, step=digests[place].windows[k].name if digests[place].windows else "")
        for place, k in job.counted
    ]


def with_steps(
    diagnosis: Diagnosis, job: Job, digests: Sequence[Digest], verdicts: Sequence[Sequence[Diagnosis]]
) -> Diagnosis:
    """Adds to the verdict which steps were left out and which have another verdict.

    Names no wall if most steps name another one, since then a few long steps determine the average.
    """
    others = _otherwise(diagnosis.wall, job, digests, verdicts)
    lines = [*_left_out(job), *(_in_words(job, wall, steps) for wall, steps in sorted(others.items()))]
    if not lines:
        return diagnosis
    because = ". ".join([diagnosis.because, *lines])
    if diagnosis.wall is Wall.UNDETERMINED or not any(len(steps) > job.steps / 2 for steps in others.values()):
        return replace(diagnosis, because=because)
    few = f"{diagnosis.wall} leads only on average: most single steps name another wall"
    return replace(diagnosis, wall=Wall.UNDETERMINED, because=f"{few}: {because}", doubt="steps_differ")


def _left_out(job: Job) -> list[str]:
    if not job.warm_up_us or job.step is None:
        return []
    took = ms(sum(job.warm_up_us))
    return [f"Left out as warm-up: the first step ({took} ms, later ones {ms(job.step.duration_us)} ms)"]


def _otherwise(
    wall: Wall, job: Job, digests: Sequence[Digest], verdicts: Sequence[Sequence[Diagnosis]]
) -> dict[Wall, list[str]]:
    """Returns the names of steps in which another wall leads, by wall, on their slowest rank; undetermined steps do not
    count."""
    if not job.steps:
        return {}
    names: dict[Wall, list[str]] = defaultdict(list)
    for place, k in job.counted:
        names[verdicts[place][k].wall].append(digests[place].windows[k].name)
    return {one: steps for one, steps in names.items() if one not in (wall, Wall.UNDETERMINED)}


def _in_words(job: Job, wall: Wall, steps: Sequence[str]) -> str:
    named = f"{', '.join(steps[:STEPS_NAMED])}{', …' if len(steps) > STEPS_NAMED else ''}"
    return f"{len(steps)} of {job.steps} single steps {'names' if len(steps) == 1 else 'name'} {wall} ({named})"
