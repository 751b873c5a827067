"""Compute: the device computes below its attainable rate.

*What it is.* Matrix products too small to fill the device, memory-bound kernels that are not fused, work in a wider
number format than needed.
*How it shows.* Achieved against attainable FLOP/s; the share of memory-bound and of very short kernels.
*What it costs.* Matrix products are below 50 % of DeepSeek-V3's time against 70 % of a dense model's; FP8 gives
10–25 % end to end, router fusion and grouped GEMM more where experts are small.
*When it does not apply.* Recompute belongs to the memory wall. Compute at the attainable rate is not lost; of the rest,
kernels that do no arithmetic count first. Nothing is recovered where compute hides communication or a copy. Without
that rate only what the trace shows is counted, and the evidence says so.
*Source.* arXiv 2603.07685 §1.2, §4.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from analyzers.diagnosis import Wall, WallFinding
from analyzers.kernel_classes import GROUPED_GEMM, MEMORY_BOUND, RECOMPUTE
from analyzers.one_rank.rank_step import RankStep
from analyzers.ranks.job import Job
from analyzers.wall_kind import WallKind
from analyzers.wording import ms, percent, short

KIND = WallKind(
    wall=Wall.COMPUTE,
    order=1,
    loses="compute runs below the attainable rate",
    column="compute",
    style="white on blue",
    segments=("compute",),
)
MAX_CLASSES = 4
MIN_SHOWN_SHARE = 0.005  # share of the step: a smaller part would be shown as 0


def find(job: Job) -> WallFinding | None:
    """Finds R: compute time beyond what the FLOPs need at the attainable rate; if that rate is unknown, memory-bound
    and short kernels."""
    step = job.step
    if step is None:
        return None
    attained = job.outcome.attained
    parts = _counted(step, attained)
    counted, alone = sum(parts.values()), _recoverable(step, attained)
    gained = job.gained_us(lambda one: _recoverable(one, attained))
    back = gained / counted if counted > 0 else 1.0
    return WallFinding(
        wall=KIND.wall,
        recoverable_us=gained,
        share=job.share(gained),
        evidence=(
            [*_busy(job, step), *_unknown_rate(job, step, parts, alone, gained), *_products(job, step)]
            if attained is None
            else [
                *_rate(job, parts),
                *_not_recovered(job, counted, alone),
                *job.until_another_is_slowest(alone, gained),
                *_busy(job, step),
                *_products(job, step),
            ]
        ),
        parts={name: back * us for name, us in parts.items()},
        bubble_us=step.bubble_with_us(gained),
        least_us=job.least_us(lambda one: _recoverable(one, attained)),
    )


def _recoverable(step: RankStep, attained: float | None) -> float:
    counted = sum(_counted(step, attained).values())
    share = step.recovered_share(KIND.wall, counted) if attained is None else _recovered_share(step, counted)
    return counted * min(1.0, share)


def _counted(step: RankStep, attained: float | None) -> dict[str, float]:
    return _visible_parts(step) if attained is None else _beyond_attainable(step, attained)


def _beyond_attainable(step: RankStep, attained: float) -> dict[str, float]:
    """Returns compute time beyond what the model's FLOPs need at the attainable rate.

    `attained` is the ratio of both rates over the step.
    """
    needed = attained * step.duration_us
    again = step.compute_by_class.get(RECOMPUTE, 0.0)
    return {"below_attainable": max(0.0, step.compute_us - again - needed)}


def _recovered_share(step: RankStep, counted_us: float) -> float:
    """Returns how much shorter the step gets per microsecond of compute beyond what the attainable rate needs; 1 if the
    rank is not replayed."""
    if counted_us <= 0:
        return 1.0
    gained = step.gained_by_compute_us(counted_us)
    return 1.0 if gained is None else max(0.0, gained) / counted_us


def _visible_parts(step: RankStep) -> dict[str, float]:
    memory_bound = sum(step.compute_by_class.get(name, 0.0) for name in MEMORY_BOUND)
    short = sum(us for name, us in step.short_kernels_by_class.items() if name not in MEMORY_BOUND)
    return {name: us for name, us in {"memory_bound": memory_bound, "short_kernels": short}.items() if us > 0}


def _busy(job: Job, step: RankStep) -> list[str]:
    who = "the rank" if job.on_cpu else "the device"
    classes = _listed(step.compute_by_class)
    return [f"{who} computes for {job.of_step(step.compute_us)}" + (f": {classes}" if classes else "")]


def _rate(job: Job, parts: dict[str, float]) -> list[str]:
    outcome = job.outcome
    return [
        f"{outcome.model_tflops_per_gpu:.3g} of {outcome.attainable_tflops_per_gpu:.3g} attainable TFLOP/s: "
        f"the model's FLOPs need {percent(outcome.attained or 0.0)} of the step, compute takes "
        f"{ms(parts['below_attainable'])} ms more (recompute not counted)"
    ]


def _not_recovered(job: Job, counted_us: float, recoverable_us: float) -> list[str]:
    if job.share(counted_us - recoverable_us) < MIN_SHOWN_SHARE:
        return []
    return [
        "compute hides communication, or the host is not far enough ahead: at that rate the step would be shorter by "
        f"only {ms(recoverable_us)} ms"
    ]


def _unknown_rate(job: Job, step: RankStep, parts: dict[str, float], alone: float, gained: float) -> list[str]:
    lines = []
    if job.share(us := parts.get("memory_bound", 0.0)) >= MIN_SHOWN_SHARE:
        classes = {name: took for name in MEMORY_BOUND if (took := step.compute_by_class.get(name, 0.0)) > 0}
        lines.append(f"memory-bound kernels take {job.of_step(us)}: {_listed(classes)}")
    if job.share(us := parts.get("short_kernels", 0.0)) >= MIN_SHOWN_SHARE:
        lines.append(f"other kernels too short to fill the device take {job.of_step(us)}")
    if job.share(sum(parts.values()) - alone) >= MIN_SHOWN_SHARE:
        lines.append(
            f"the host is not far enough ahead: without these kernels the step would be shorter by only "
            f"{ms(alone)} ms, the rest would become launch wait"
        )
    lines += job.until_another_is_slowest(alone, gained)
    return [*lines, "the attainable GEMM rate is not known from the trace alone: not counted"]


def _products(job: Job, step: RankStep) -> list[str]:
    """Returns lines on GEMMs whose shapes are not known: number, duration, format."""
    lines = []
    if step.grouped_gemms >= 1:
        took = step.compute_by_class.get(GROUPED_GEMM, 0.0)
        each = "" if job.steps == 0 else " per step"
        lines.append(
            f"experts: {step.grouped_gemms:,.0f} grouped GEMM kernels{each} of {short(step.grouped_gemm_us)} (median), "
            f"{job.of_step(took)}"
        )
    if job.share(sum(step.gemm_by_precision.values())) >= MIN_SHOWN_SHARE:
        lines.append(f"other GEMMs by format: {_listed(step.gemm_by_precision)}")
    return lines


def _listed(took: Mapping[str, float]) -> str:
    """Returns the entries as `gemm 80 ms, elementwise 39 ms`, the longest first."""
    shown = [(name, us) for name, us in took.items() if us > MIN_SHOWN_SHARE * sum(took.values())]
    largest = sorted(shown, key=lambda item: -item[1])[:MAX_CLASSES]
    return ", ".join(f"{name.replace('_', ' ')} {ms(us)} ms" for name, us in largest)
