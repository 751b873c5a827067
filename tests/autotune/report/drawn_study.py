"""A tuning run drawn by hand, as the events of its journal: a base that does not fit, less and less recompute, a larger
micro batch, and trials of every outcome.

Step times, peaks and partitions are invented but consistent: each partition adds up to its step, each verdict is the
judge's own, and the noise is a fixed pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from analyzers.diagnosis import (
    Analysis,
    CommunicationTime,
    Coverage,
    Diagnosis,
    IdleByCause,
    Partition,
    TraceReport,
    Wall,
    WallFinding,
)
from autotune.tuning.events import (
    Analyzed,
    BurstFinished,
    BurstStarted,
    Ended,
    Event,
    Judged,
    Proposed,
    Refused,
    StudyStarted,
    TunerStarted,
)
from autotune.tuning.history import History
from autotune.tuning.judge import judge
from policies.trial import Phase
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.rules.examples import FULL

LIMIT_GIB = 1.0
COST_S = 31.2  # cost of every burst
RIPPLE = (0.0, 0.006, -0.004, 0.011, -0.007, 0.002, -0.009, 0.005)  # relative deviations of a burst's steps


@dataclass(frozen=True, kw_only=True)
class Step:
    """One drawn trial. `shares` are parts of the step by the name of the segment; what is left computes."""

    fix: str
    phase: Phase
    changes: dict[str, Any] = field(default_factory=dict)
    because: str
    step_ms: float | None = None
    peaks: tuple[float, ...] = (0.0, 0.0)
    shares: dict[str, float] = field(default_factory=dict)
    gain: float | None = None
    bound: float | None = None
    peak_gib: float | None = None
    failure: Failure | None = None
    refused: bool = False
    repeats: tuple[float, ...] = ()  # further bursts, as factors of the step time
    loss_shift: float = 0.0


SELECTIVE = {
    "recompute_granularity": "selective",
    "recompute_modules": ("core_attn",),
    "recompute_method": None,
    "recompute_num_layers": None,
}
OOM = Failure(
    kind=FailureKind.OOM,
    phase=BurstPhase.BACKWARD,
    rank=1,
    evidence="RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 33554432 bytes. Error code 12 (Cannot allocate memory)",
)
DIVERGED = Failure(
    kind=FailureKind.DIVERGED,
    phase=BurstPhase.CHECK,
    rank=0,
    evidence="decoder.layers.0.mlp.experts.linear_fc1.weight differs between ranks 0 and 1 by 0.002",
)

STEPS: tuple[Step, ...] = (
    Step(fix="base", phase=Phase.FIT, because="the base recipe", failure=OOM),
    Step(
        fix="full_recompute",
        phase=Phase.FIT,
        changes=FULL,
        because="trial 0 ran out of memory in backward on rank 1 (limit 1.00 GiB); nothing lighter is predicted to fit",
        step_ms=1660,
        peaks=(0.61, 0.66),
        shares={"recompute": 0.31, "ep_dispatch": 0.05, "ep_combine": 0.04, "dp": 0.03, "host": 0.16, "sync": 0.02},
        peak_gib=0.63,
        repeats=(1.012, 0.99),
    ),
    Step(
        fix="drop_recompute",
        phase=Phase.PROFILE,
        changes=SELECTIVE,
        because="recompute for 31 % of the step (515 of 1660 ms); selective recompute "
        "claims 480 ms of it: 35.0 % expected, at most 45.0 %; memory: 0.85 of 1.00 GiB from trial 1's 0.66 GiB",
        step_ms=1270,
        peaks=(0.84, 0.88),
        shares={"recompute": 0.05, "ep_dispatch": 0.07, "ep_combine": 0.05, "dp": 0.04, "host": 0.21, "sync": 0.03},
        gain=0.35,
        bound=0.45,
        peak_gib=0.85,
    ),
    Step(
        fix="micro_batch_up",
        phase=Phase.PROFILE,
        changes={"micro_batch_size": 4},
        because="the device waits for the host for 21 % of the step (267 of 1270 ms); a larger micro batch "
        "(micro_batch_size 1 → 4) claims 200 ms of it: 18.7 % expected, at most 26.6 %",
        step_ms=1010,
        peaks=(0.91, 0.95),
        shares={"recompute": 0.05, "ep_dispatch": 0.08, "ep_combine": 0.06, "dp": 0.12, "host": 0.07, "sync": 0.03},
        gain=0.187,
        bound=0.266,
        peak_gib=0.93,
    ),
    Step(
        fix="dispatcher",
        phase=Phase.PROFILE,
        changes={"moe_token_dispatcher_type": "allgather"},
        because="EP dispatch is exposed for 8 % of the step (81 of 1010 ms); another dispatcher claims half of it",
        step_ms=1130,
        peaks=(0.93, 0.97),
        shares={"recompute": 0.05, "ep_dispatch": 0.17, "ep_combine": 0.09, "dp": 0.08, "host": 0.06, "sync": 0.03},
        gain=0.04,
        bound=0.164,
        peak_gib=0.95,
    ),
    Step(
        fix="overlap_grad_reduce",
        phase=Phase.PROFILE,
        changes={"use_distributed_optimizer": True, "overlap_grad_reduce": True},
        because="DP communication is exposed for 12 % of the step (121 of 1010 ms); overlapping claims 70 ms of it",
        step_ms=1004,
        peaks=(0.9, 0.94),
        shares={"recompute": 0.05, "ep_dispatch": 0.08, "ep_combine": 0.06, "dp": 0.11, "host": 0.07, "sync": 0.04},
        gain=0.07,
        bound=0.35,
        peak_gib=0.93,
        repeats=(1.01,),
    ),
    Step(
        fix="micro_batch_up",
        phase=Phase.RETUNE,
        changes={"micro_batch_size": 8},
        because="the device waits for the host for 7 % of the step; memory was freed by trial 5",
        failure=OOM,
        peak_gib=0.99,
        gain=0.02,
        bound=0.08,
    ),
    Step(
        fix="search",
        phase=Phase.RETUNE,
        changes={"threads_per_rank": 2},
        because="search around trial 3: threads_per_rank moved most so far",
        step_ms=905,
        peaks=(0.92, 0.95),
        shares={"recompute": 0.05, "ep_dispatch": 0.09, "ep_combine": 0.07, "dp": 0.09, "host": 0.05, "sync": 0.02},
        loss_shift=2e-4,
    ),
    Step(
        fix="search",
        phase=Phase.RETUNE,
        changes={"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1},
        because="search around trial 7",
        failure=DIVERGED,
    ),
    Step(
        fix="search",
        phase=Phase.RETUNE,
        changes={"micro_batch_size": 3},
        because="search around trial 7",
        failure=Failure(kind=FailureKind.CONFIG, evidence="global_batch_size 8 is not a multiple of 3 x DP 2"),
        refused=True,
    ),
)


def events(steps: tuple[Step, ...] = STEPS, *, ended: bool = True) -> list[Event]:
    """Returns the journal of the drawn run."""
    written: list[Event] = [_started()]
    history = History(written)
    for event in _run(steps, history):
        written.append(event)
        history.fold(event)
    if ended:
        written.append(Ended(at=900.0, status="converged", because="no fix is left whose bound is above the noise"))
    return written


def write_study(folder: Path, written: list[Event] | None = None) -> Path:
    """Writes a study folder that holds the journal alone."""
    folder.mkdir(parents=True)
    lines = [msgspec.json.encode(event) for event in (events() if written is None else written)]
    (folder / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return folder


def base_recipe() -> Recipe:
    return load_recipe("cpu-moe").replace({"expert_tensor_parallel_size": 1})


def _started() -> StudyStarted:
    recipe = base_recipe()
    return StudyStarted(
        at=1.0,
        version="0.1.0",
        name="cpu-moe",
        recipe=recipe.model_dump(mode="json"),
        digest=recipe.digest(),
        seed=1234,
        environment={"torch": "2.13.0", "megatron-core": "0.16.1", "python": "3.11.2", "host": "bench-3", "cpus": "2"},
    )


def _run(steps: tuple[Step, ...], history: History) -> Iterator[Event]:
    burst = 0
    for number, step in enumerate(steps):
        best = history.best or history.attempted.get(0)
        recipe = best.recipe.replace(step.changes) if best else base_recipe()
        yield Proposed(
            trial=number,
            parent=best.number if best else None,
            phase=step.phase,
            fix=step.fix,
            because=step.because,
            recipe=recipe.model_dump(mode="json"),
            changes=best.recipe.diff(recipe) if best else {},
            gain=step.gain,
            gain_bound=step.bound,
            peak_gib=step.peak_gib,
        )
        if step.refused:
            yield Refused(trial=number, outcome=Outcome(failure=step.failure))
        for repeat, factor in enumerate(() if step.refused else (1.0, *step.repeats)):
            burst += 1
            yield BurstStarted(burst=burst, trial=number, purpose="repeat" if repeat else "measure")
            yield BurstFinished(burst=burst, trial=number, outcome=_outcome(step, factor, burst), seconds=31.5, ranks=2)
            if repeat == 0 and step.step_ms:
                yield Analyzed(burst=burst, trial=number, analysis=analysis_of(step, burst))
        trial = history.attempted[number]
        judgement = judge(trial, against=history.best, trials=[*history.trials, trial])
        yield Judged(trial=number, status=trial.status, verdict=judgement.verdict, reason=judgement.reason)


def _outcome(step: Step, factor: float, burst: int) -> Outcome:
    if step.step_ms is None:
        return Outcome(failure=step.failure, limit_gib=LIMIT_GIB, ranks=2, cost_s=COST_S)
    turned = RIPPLE[burst % 8 :] + RIPPLE[: burst % 8]
    step_us = [1e3 * step.step_ms * factor * (1 + ripple) for ripple in turned]
    return Outcome(
        step_us=step_us,
        cpu_us=[1.9 * us for us in step_us],
        loss=[6.98 - 0.09 * i + step.loss_shift * i for i in range(11)],
        peak_gib=list(step.peaks),
        limit_gib=LIMIT_GIB,
        tokens_per_step=8 * 256,
        ranks=2,
        tokens_per_s_per_gpu=8 * 256 / 2 / (step.step_ms * 1e-3),
        model_tflops_per_gpu=0.031,
        attainable_tflops_per_gpu=0.09,
        startup_s=11.2,
        cost_s=COST_S,
        layers="local",
        versions={"torch": "2.13.0+cpu"},
    )


def analysis_of(step: Step, burst: int) -> Analysis:
    """Returns the analysis of two ranks with two traced steps each; rank 1 is 2 % slower in every part."""
    traces = [_trace(step, burst, rank) for rank in (0, 1)]
    recompute, host = step.shares.get("recompute", 0.0), step.shares.get("host", 0.0)
    exposed = {kind: step.shares.get(kind, 0.0) for kind in ("ep_dispatch", "ep_combine", "dp")}
    walls = [
        (Wall.MEMORY, recompute, [f"recompute takes {recompute:.1%} of the step on rank 1"], {"recompute": recompute}),
        (
            Wall.COMMUNICATION,
            sum(exposed.values()),
            [f"{kind} is exposed for {share:.1%} of the step on rank 1" for kind, share in exposed.items() if share],
            exposed,
        ),
        (Wall.HOST, host, [f"rank 1 is idle for {host:.1%} of the step before a launch"], {"launching": host}),
    ]
    us = 1e3 * (step.step_ms or 0.0) * 1.08
    findings = [
        WallFinding(
            wall=wall,
            recoverable_us=share * us,
            share=share,
            evidence=said,
            parts={k: v * us for k, v in parts.items()},
        )
        for wall, share, said, parts in sorted(walls, key=lambda row: -row[1])
    ]
    margin = findings[0].share - findings[1].share
    leads = margin >= 0.02
    because = f"{findings[0].wall} leads {findings[1].wall} by {margin:.1%} of the step"
    diagnosis = Diagnosis(
        wall=findings[0].wall if leads else Wall.UNDETERMINED,
        margin=margin,
        because=because if leads else f"{because}: less than 2 %",
        walls=findings,
    )
    return Analysis(diagnosis=diagnosis, traces=traces)


def _trace(step: Step, burst: int, rank: int) -> TraceReport:
    steps = [partition(step, f"ProfilerStep#{n}", rank=rank, stretch=1.08 + 0.01 * n) for n in (11, 12)]
    return TraceReport(
        path=f"bursts/{burst:04d}/trace/rank{rank}.pt.trace.json.gz",
        format="kineto",
        rank=rank,
        devices=[0],
        span=steps[0],
        steps=steps,
        coverage=Coverage(device_time_classified=0.997, kernels=18211),
    )


def partition(step: Step, name: str, *, rank: int, stretch: float) -> Partition:
    us = 1e3 * (step.step_ms or 0.0) * stretch * (1.0 + 0.02 * rank)
    part = {key: share * us for key, share in step.shares.items()}
    kinds = {key: part[key] for key in ("ep_dispatch", "ep_combine", "dp") if key in part}
    exposed, idle = sum(kinds.values()), part.get("host", 0.0) + part.get("sync", 0.0)
    compute = us - exposed - idle
    return Partition(
        name=name,
        start_us=0.0,
        duration_us=us,
        busy_us=compute + exposed,
        compute_us=compute,
        communication_us=1.2 * exposed,
        exposed_communication_us=exposed,
        communication_by_kind={k: CommunicationTime(busy_us=1.2 * v, exposed_us=v) for k, v in kinds.items()},
        copy_us=0.0,
        exposed_copy_us=0.0,
        idle_us=idle,
        idle_by_cause=IdleByCause(host_us=part.get("host", 0.0), sync_us=part.get("sync", 0.0)),
        compute_by_class={
            "grouped_gemm": 0.6 * (compute - part.get("recompute", 0.0)),
            "attention": 0.4 * (compute - part.get("recompute", 0.0)),
            "recompute": part.get("recompute", 0.0),
        },
        recompute_us=part.get("recompute", 0.0),
    )


def clocked(written: list[Event]) -> list[Event]:
    """Returns the drawn study with the start of a tuner as its second event: the first is at 10 s, each later one a
    minute after the one before."""
    tuner = TunerStarted(recipe="base.yaml", budget=20, host="bench-3", process=41)
    ordered = [written[0], tuner, *written[1:]]
    return [msgspec.structs.replace(event, at=10.0 + 60.0 * index) for index, event in enumerate(ordered)]
