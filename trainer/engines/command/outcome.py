"""Makes a burst's outcome from what the trainer printed and the files of its ranks."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from trainer.above_peak import above_peak
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.engines.command.follow import Followed
from trainer.engines.command.job import Job
from trainer.engines.command.lines import Iteration, Reading
from trainer.engines.command.setup import NotPrepared
from trainer.engines.command.usage import Usage, read_usage
from trainer.failures import Evidence, classify
from trainer.frameworks.bounds import Bounds
from trainer.frameworks.framework import Plain
from trainer.launchers import mailbox
from trainer.model.flops import model_flops_per_token
from trainer.recipe import Recipe
from trainer.secrets import names_in

NSIGHT = frozenset({".nsys-rep", ".qdrep", ".qdstrm", ".sqlite"})
ARGUMENTS_WITHIN = 1 << 20  # characters at the start of a log that contain the dump of arguments


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of the job.

    `code`: the exit code of the program that started it, None if it had to be killed; `flight`: the hang by torch's
    flight recorder, and the rank that did not join; `not_prepared`: the rank that did not complete its setup.
    """

    followed: Followed
    code: int | None
    evidence: Evidence
    flight: tuple[str, int | None] | None = None
    not_prepared: NotPrepared | None = None


_RESUMED = (
    "the first line of the trainer is of iteration {first}: it resumed from a checkpoint, or does not print every "
    "iteration; a burst starts with the first: take what makes it resume out of trainer.command and trainer.env, and "
    "make it print each"
)


def outcome_of(job: Job, reading: Reading, ended: Ended) -> Outcome:
    """Returns the outcome: the measured steps as the trainer timed them, the losses of all steps, and the memory of
    every rank that reported it."""
    recipe, bounds = job.burst.recipe, job.bounds
    measured = [reading.iterations[n] for n in bounds.measures if n in reading.iterations]
    usage = read_usage(job.ranks_folder, recipe.world_size)
    known, unknown = _peaks(recipe, reading, usage)
    peaks = [known[rank] for rank in sorted(known)]
    failure = _failure(recipe, bounds, reading, ended, known)
    step_us = [each.ms * 1e3 for each in measured]
    tokens = recipe.training.tokens_per_step
    rate = tokens / (statistics.median(step_us) / 1e6) / recipe.world_size if step_us and failure is None else None
    reported = [each.tflops for each in measured if each.tflops]
    counted = None if rate is None else _tflops(recipe, rate)
    as_reported = statistics.median(reported) if reported else None
    return Outcome(
        failure=failure,
        step_us=step_us,
        cpu_us=_cpu_us(bounds, usage, recipe.world_size) if len(step_us) == len(bounds.measures) else [],
        loss=_finite(each.loss for each in _in_order(reading)),
        grad_norm=_finite(each.grad_norm for each in _in_order(reading)),
        skipped_steps=sum(each.skipped for each in reading.iterations.values()),
        peak_gib=peaks,
        outside_gib=[held for rank in sorted(usage) if (held := usage[rank].outside_gib) is not None],
        limit_gib=recipe.memory_limit_gib,
        tokens_per_step=tokens,
        ranks=recipe.world_size,
        tokens_per_s_per_gpu=rate,
        model_tflops_per_gpu=counted,
        reported_tflops_per_gpu=as_reported,
        attainable_tflops_per_gpu=recipe.peak_tflops,
        cores_per_rank=(os.cpu_count() or 1) / recipe.ranks_per_node if recipe.burst.launcher_kind == "local" else None,
        acting=_acting(job),
        versions=usage[min(usage)].versions if usage else {},
        warnings=[
            *unknown,
            *_warnings(reading, ended.followed),
            *above_peak(recipe, counted=counted, reported=as_reported),
            *_unmasked(job),
        ],
    )


def _acting(job: Job) -> dict[str, Plain]:
    """Returns the knob values that the trainer says it runs with, from its folder or the log of rank 0."""
    path, log = mailbox.log_path(job.folder, 0), ""
    if path.exists():
        with path.open(errors="replace") as file:
            log = file.read(ARGUMENTS_WITHIN)
    return job.framework.acting_knobs(job.burst.recipe, job.written, log)


def _tflops(recipe: Recipe, rate: float) -> float:
    return rate * model_flops_per_token(recipe.architecture, recipe.training.seq_length) / 1e12


def _in_order(reading: Reading) -> list[Iteration]:
    return [reading.iterations[number] for number in sorted(reading.iterations)]


def _finite(values: Iterable[float | None]) -> list[float]:
    """Returns the finite values only. JSON has no NaN or infinity, and the failure reports those."""
    return [value for value in values if value is not None and math.isfinite(value)]


def _cpu_us(bounds: Bounds, usage: dict[int, Usage], ranks: int) -> list[float]:
    """Returns the CPU time of each measured step summed over ranks, in µs; [] where a rank did not report it."""
    steps = [usage[rank].cpu_s[bounds.warmup : bounds.measures.stop - 1] for rank in usage]
    if len(steps) < ranks or any(len(each) < bounds.measured for each in steps):
        return []
    return [1e6 * sum(step) for step in zip(*steps, strict=True)]


def _peaks(recipe: Recipe, reading: Reading, usage: dict[int, Usage]) -> tuple[dict[int, float], list[str]]:
    """Returns the peak memory in GiB by rank: from the injected sitecustomize, else from the log, of the ranks that
    print it; and warnings."""
    known = {rank: each.peak_gib for rank, each in usage.items()}
    known = known or {rank: gib for rank, gib in reading.peak_gib.items() if gib}
    silent = recipe.world_size - len(known)
    if not silent:
        return known, []
    return known, [f"memory of {silent} of {recipe.world_size} ranks is not known: the hottest may be among them"]


def _failure(recipe: Recipe, bounds: Bounds, reading: Reading, ended: Ended, peaks: dict[int, float]) -> Failure | None:
    done, first = max(reading.iterations, default=0), min(reading.iterations, default=0)
    if ended.not_prepared is not None:
        return ended.not_prepared.failure()
    if wrong := next((reason for each in _in_order(reading) if (reason := each.not_finite())), None):
        return Failure(kind=FailureKind.NAN, phase=BurstPhase.FORWARD, evidence=wrong)
    if first >= bounds.measures.stop:
        return Failure(kind=FailureKind.CONFIG, phase=BurstPhase.START, evidence=_RESUMED.format(first=first))
    if done < bounds.last or ended.code not in (0, None):
        found = classify(ended.evidence) if ended.code != 0 or ended.followed.overdue_s is not None else None
        if found is not None and found.kind is FailureKind.HANG and ended.flight is not None:
            reason, rank = ended.flight
            return msgspec.structs.replace(
                found, evidence=f"{reason}; {found.evidence}", rank=rank if found.rank is None else found.rank
            )
        return found or Failure(kind=FailureKind.CONFIG, phase=BurstPhase.START, evidence=_short(bounds, done))
    limit = recipe.memory_limit_gib
    hottest = max(peaks, key=lambda rank: peaks[rank], default=None)
    if limit is not None and hottest is not None and peaks[hottest] > limit:
        reason = f"rank {hottest} took {peaks[hottest]:.2f} GiB of {limit:g} GiB"
        return Failure(kind=FailureKind.OOM, rank=hottest, evidence=reason)
    return None


def _short(bounds: Bounds, done: int) -> str:
    if done == 0:
        return (
            "the trainer ended without an iteration line (trainer.patterns says how one looks); its log is in the "
            "burst's log/"
        )
    return f"the trainer ended after iteration {done} of {bounds.last}: its schedule must allow that many"


def _unmasked(job: Job) -> list[str]:
    """Returns a warning if Nsight's files may contain secrets: they record the environment and cannot be masked."""
    names = names_in({**os.environ, **job.rank_variables()})
    if not names or not any(path.suffix in NSIGHT for path in (job.folder / "trace").glob("*")):
        return []
    secrets = ", ".join(sorted(names))
    return [f"Nsight's files in trace/ may hold the values of {secrets}: delete them before the study is handed on"]


def _warnings(reading: Reading, followed: Followed) -> list[str]:
    found = []
    if skipped := sum(each.skipped for each in reading.iterations.values()):
        found.append(f"the trainer skipped {skipped} of {len(reading.iterations)} iterations")
    if followed.lingered:
        found.append("the trainer finished its iterations and did not exit: it was killed")
    return found
