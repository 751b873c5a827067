"""Draws jobs whose ranks wait for others, one function per cause: who is late, and why, is known."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from analyzers import analyze
from analyzers.diagnosis import Diagnosis, Wall
from tests.analyzers.moe_steps.job import Job
from tests.analyzers.moe_steps.program import Host, Instruction, Machine
from tests.analyzers.moe_steps.scenarios import PAUSES, Case, healthy, layer_us, played, step_us
from tests.analyzers.moe_steps.truth import Loss

EVEN = 0.03  # relative difference between ranks of each kernel's time
UNTRACED = "untraced_ranks"


@dataclass(frozen=True, kw_only=True)
class Late:
    """Job with known late ranks.

    cause: the diagnosis that is right; ranks: the late ones; traced: those with traces, None for all.
    """

    job: Job
    cause: str
    ranks: frozenset[int]
    on_time: frozenset[int] = frozenset()  # ranks that must not be named; ranks in neither set may be
    traced: frozenset[int] | None = None


def _even(random: Random, *, ranks: tuple[int, ...] = (2, 2, 4)) -> Job:
    return replace(healthy(random, ranks=random.choice(ranks)), noise=random.uniform(0.0, EVEN))


def _one(random: Random, job: Job, longer: float) -> tuple[int, tuple[float, ...]]:
    late = random.randrange(job.ranks)
    return late, tuple(longer if rank == late else 1.0 for rank in range(job.ranks))


def _paused_host(random: Random) -> Late:
    """Draws a job in which one rank's host collects garbage, or does something that no event shows."""
    job = _even(random)
    late = random.randrange(job.ranks)
    count = random.randint(1, 4)
    pause = step_us(job) * random.uniform(0.3, 1.2) / count
    shown = random.choice(PAUSES)
    return Late(
        job=replace(job, pauses_us=(pause,) * count, pause=shown, paused_rank=late),
        cause="late_host",
        ranks=frozenset({late}),
    )


def _hosts_by_turns(random: Random) -> Late:
    """Draws a job in which each rank's host pauses at a different moment, and all wait for it."""
    job = _even(random)
    count = job.ranks * random.randint(1, 2)
    pause = step_us(job) * random.uniform(0.3, 0.8) / job.ranks
    shown = random.choice(PAUSES)
    return Late(
        job=replace(job, pauses_us=(pause,) * count, pause=shown, pauses_move=True),
        cause="late_host",
        ranks=frozenset(range(job.ranks)),
    )


def _slow_launching(random: Random) -> Late:
    """Draws a job in which one rank's host launches 15 to 40 times more slowly: another program has its cores."""
    job = _even(random)
    late, slower = _one(random, job, random.uniform(15.0, 40.0))
    unit = random.uniform(60.0, 200.0)
    short = replace(
        job,
        attention_us=unit,
        dense_us=3 * unit,
        experts_us=job.expert_kernels * unit,
        exchange_us=unit,
        python_us=unit * random.uniform(0.06, 0.1),
        optimizer_us=unit,
        reduce_us=0.0,
        in_graph=False,
        operators=True,
    )
    return Late(job=replace(short, slow_host=slower), cause="late_host", ranks=frozenset({late}))


def _slow_device(random: Random) -> Late:
    job = _even(random)
    late, slower = _one(random, job, random.uniform(1.2, 2.0))
    return Late(job=replace(job, slow_compute=slower), cause="slow_device", ranks=frozenset({late}))


def _busy_experts(random: Random) -> Late:
    job = _even(random)
    job = replace(job, experts_us=job.experts_us * random.uniform(1.0, 2.5), load=random.uniform(1.5, 3.0))
    return Late(job=job, cause="experts_load", ranks=frozenset({0}))


def _experts_by_turns(random: Random) -> Late:
    """Draws a job in which the rank with the busiest experts changes from layer to layer."""
    late = _busy_experts(random)
    layers = max(late.job.layers, late.job.ranks)
    return replace(late, job=replace(late.job, load_moves=True, layers=layers), ranks=frozenset(range(late.job.ranks)))


def _long_sequences(random: Random) -> Late:
    """Draws a job in which one rank's attention takes longer and its GEMMs do not."""
    job = _even(random)
    job = replace(
        job, attention_us=job.attention_us * random.uniform(1.5, 3.0), attention_load=random.uniform(1.6, 3.0)
    )
    return Late(job=job, cause="uneven_work", ranks=frozenset({0}))


def _bubble(random: Random) -> Late:
    job = healthy(random)
    bubble_us = layer_us(job) * job.layers * random.uniform(0.4, 1.0)
    job = replace(job, bubble_us=bubble_us, bubble_on_host=random.random() < 0.4)
    return Late(job=job, cause="bubble", ranks=frozenset())


def _untraced(random: Random) -> Late:
    """Draws a job whose late rank, late for any cause, has no trace."""
    drawn = random.choice((_slow_device, _paused_host, _busy_experts))(random)
    job = replace(drawn.job, ranks=4)
    (late,) = drawn.ranks
    if job.slow_compute:
        job = replace(job, slow_compute=tuple(max(job.slow_compute) if rank == late else 1.0 for rank in range(4)))
    return Late(job=job, cause=UNTRACED, ranks=frozenset(), traced=frozenset(range(4)) - {late})


MIN_LATE_SHARE = 0.1  # least cost of lateness, as a share of the step
LOSSES = {"late_host": Loss.HOST, "bubble": Loss.BUBBLE}
LEADERS = (Loss.HOST, Loss.BUBBLE, Loss.IMBALANCE)
MIN_NAMED_SHARE = 0.05  # share of the step from which a rank that pauses must be named

CAUSES: Mapping[str, Callable[[Random], Late]] = {
    "paused_host": _paused_host,
    "hosts_by_turns": _hosts_by_turns,
    "slow_launching": _slow_launching,
    "slow_device": _slow_device,
    "busy_experts": _busy_experts,
    "experts_by_turns": _experts_by_turns,
    "long_sequences": _long_sequences,
    "bubble": _bubble,
    "untraced": _untraced,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """Diagnosis of one case. `share`: the true cost of the largest loss, as a share of the step."""

    name: str
    seed: int
    late: Late
    diagnosis: Diagnosis
    share: float

    @property
    def cause(self) -> str:
        """Returns the verdict in a word; empty where there is none."""
        cause = self.diagnosis.cause
        if cause is not None and cause.name not in ("unknown", "too_close"):
            return cause.name
        return "" if self.diagnosis.wall is Wall.UNDETERMINED else str(self.diagnosis.wall)

    @property
    def right(self) -> bool:
        """Returns whether the cause and the late ranks are named; if the cause is the host, the wall must be the host
        (without ranks if all are late)."""
        late, cause = self.late, self.diagnosis.cause
        if self.diagnosis.wall is Wall.HOST and late.cause == "late_host" and cause is None:
            return not late.on_time
        named = cause is not None and cause.name == late.cause
        ranks = set(cause.ranks) if cause is not None else set()
        host = self.diagnosis.wall is Wall.HOST
        return named and late.ranks <= ranks and not ranks & late.on_time and host == (late.cause == "late_host")

    @property
    def abstained(self) -> bool:
        """Returns whether nothing is claimed, or only that other ranks' traces are needed, in a case that is not
        `right`."""
        return not self.right and self.cause in ("", UNTRACED)

    def __str__(self) -> str:
        return (
            f"{self.name} {self.seed}: {self.diagnosis.wall}, {self.cause or 'no cause'}: {self.diagnosis.headline}; "
            f"right: {self.late.cause} on {sorted(self.late.ranks)}\n    because: {self.diagnosis.because}\n"
            f"    cause: {self.diagnosis.cause}"
        )


def draw_late(name: str, seed: int) -> tuple[Late, Case]:
    """Returns the same case for the same seed. Draws again until lateness costs time: a host that is far ahead may
    pause without a loss."""
    random = Random(f"late {name} {seed}")
    while True:
        late = CAUSES[name](random)
        case = played(name, seed, late.job, random)
        if case.truth.gain[LOSSES.get(late.cause, Loss.IMBALANCE)] >= MIN_LATE_SHARE and case.truth.leader in LEADERS:
            return late, case


def _cost(case: Case, rank: int) -> float:
    """Returns the share of the step that the pauses of one rank's host cost."""

    def unpaused(one: Instruction) -> Instruction:
        if not isinstance(one, Host) or one.name.startswith("aten"):
            return one
        if not one.us[rank] or sum(us > 0 for us in one.us) > 1:
            return one
        return one._replace(us=(0.0,) * len(one.us))

    counted = case.steps[case.job.warm_up :]
    without = [[unpaused(one) for one in step] for step in counted]
    return 1 - Machine(case.job.ranks).run(without)[-1] / Machine(case.job.ranks).run(counted)[-1]


def find_cause(name: str, seed: int) -> Found:
    late, case = draw_late(name, seed)
    late = replace(late, on_time=frozenset(range(late.job.ranks)) - late.ranks)
    if late.job.pauses_move:
        late = replace(late, ranks=frozenset(rank for rank in late.ranks if _cost(case, rank) >= MIN_NAMED_SHARE))
    with tempfile.TemporaryDirectory() as folder:
        for rank, recording in enumerate(case.recordings):
            if late.traced is None or rank in late.traced:
                recording.write(Path(folder))
        diagnosis = analyze([Path(folder)]).diagnosis
    return Found(name=name, seed=seed, late=late, diagnosis=diagnosis, share=max(case.truth.gain.values()))
