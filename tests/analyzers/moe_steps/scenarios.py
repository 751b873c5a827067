"""Draws jobs with a known cause of lost time and random sizes, a function per scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.analyzers.moe_steps import names
from tests.analyzers.moe_steps.job import Builder, Job
from tests.analyzers.moe_steps.program import Instruction, Machine
from tests.analyzers.moe_steps.recording import Recording
from tests.analyzers.moe_steps.truth import Truth, truth

CLOCKS_APART_US = 50_000.0  # largest difference between the clocks of two ranks
LARGEST = 30  # most layers × steps × micro-batches × ranks of a case with a third step or a second micro-batch


def healthy(random: Random, *, ranks: int = 1) -> Job:
    """Returns a job without much of any loss: large kernels, short exchanges, a quick host."""
    layers = random.choice((2, 2, 3, 3, 4, 4, 6, 6, 8, 8, 12, 12, 24))
    steps = min(random.randint(2, 6), max(2, LARGEST // (layers * ranks)))
    unit = 10 ** random.uniform(2.0, 3.2)  # us of a layer's large kernels
    micro_batches = 2 if layers * steps * ranks * 2 <= LARGEST and random.random() < 0.4 else 1
    return Job(
        layers=layers,
        steps=steps,
        micro_batches=micro_batches,
        ranks=ranks,
        library=random.choice(names.LIBRARIES),
        noise=random.uniform(0.0, 0.12),
        attention_us=unit * random.uniform(0.5, 1.5),
        dense_us=unit * random.uniform(0.8, 2.0),
        experts_us=unit * random.uniform(1.0, 3.0),
        expert_kernels=random.choice((2, 2, 4, 8)),
        small_us=unit * random.uniform(0.005, 0.012),
        exchange_us=unit * random.uniform(0.01, 0.04),
        reduce_us=unit * random.uniform(0.0, 0.5),
        optimizer_us=unit * random.uniform(0.5, 2.0),
        in_graph=random.random() < 0.2,
        python_us=random.uniform(1.0, min(8.0, 0.01 * unit)),
        launch_us=random.uniform(3.0, 6.0) * min(1.0, unit / 400),
        operators=random.random() < 0.8,
    )


def layer_us(job: Job) -> float:
    """Returns the compute of one layer, forward and backward."""
    return 3 * (job.attention_us + job.dense_us + job.experts_us + 7 * job.small_us)


def step_us(job: Job) -> float:
    return layer_us(job) * job.layers * job.micro_batches + job.optimizer_us


def _exposed_exchange(random: Random) -> Job:
    """Draws a job with much exposed dispatch and combine, four exchanges per layer; in a third of the jobs compute
    hides 30 % of each."""
    job = healthy(random)
    exposed_us = layer_us(job) * random.uniform(0.15, 1.2) / 4
    covered = random.choice((0.0, 0.0, 0.3))
    return replace(job, exchange_us=exposed_us / (1 - covered), covered=covered)


def _hidden_exchange(random: Random) -> Job:
    job = healthy(random)
    return replace(job, exchange_us=layer_us(job) * random.uniform(0.1, 0.4) / 4, covered=random.uniform(1.2, 1.8))


def _slow_launches(random: Random) -> Job:
    """Draws a job whose kernels are shorter than the time the host needs to launch them."""
    job = healthy(random)
    unit = random.uniform(8.0, 25.0)
    return replace(
        job,
        attention_us=unit,
        dense_us=3 * unit * random.uniform(0.4, 1.0),
        experts_us=job.expert_kernels * unit * random.uniform(0.3, 1.0),
        small_us=random.uniform(2.0, 5.0),
        exchange_us=unit * random.uniform(0.5, 3.0),
        reduce_us=unit * random.uniform(0.0, 2.0),
        optimizer_us=unit,
        python_us=unit * random.uniform(1.0, 2.5),
        launch_us=random.uniform(4.0, 8.0),
    )


PAUSES = (("gc", "user_annotation"), ("gc", "user_annotation"), ("gc.collect", "python_function"), ("", ""))


def _collecting_garbage(random: Random) -> Job:
    """Draws a job whose host stops for so long that the device is idle."""
    job = replace(healthy(random), library=random.choice(names.LIBRARIES))
    count = random.randint(1, 3)
    pause = step_us(job) * random.uniform(0.5, 1.5) / count
    return replace(job, pauses_us=(pause,) * count, pause=random.choice(PAUSES))


LOADERS = (("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation"), ("", ""))


def _loading_data(random: Random) -> Job:
    job = healthy(random)
    return replace(job, data_us=step_us(job) * random.uniform(0.12, 1.0), data=random.choice(LOADERS))


def _pipeline_bubble(random: Random) -> Job:
    job = healthy(random)
    bubble = layer_us(job) * job.layers * random.uniform(0.15, 1.0)
    return replace(job, bubble_us=bubble, bubble_on_host=random.random() < 0.4)


def _straggler(random: Random) -> Job:
    """Draws a job in which one rank is slower than the others: its device, or its host."""
    job = replace(healthy(random, ranks=random.choice((2, 2, 4))), noise=random.uniform(0.0, 0.04))
    late = random.randrange(job.ranks)
    if random.random() < 0.35:
        pause = step_us(job) * random.uniform(0.5, 1.2)
        return replace(job, pauses_us=(pause,), pause=random.choice(PAUSES), paused_rank=late)
    slower = random.uniform(1.3, 2.0)
    return replace(job, slow_compute=tuple(slower if rank == late else 1.0 for rank in range(job.ranks)))


def _uneven_experts(random: Random) -> Job:
    """Draws a job in which one rank's experts get more tokens; the rank may change from layer to layer."""
    job = replace(healthy(random, ranks=random.choice((2, 4))), noise=random.uniform(0.0, 0.04))
    job = replace(job, experts_us=job.experts_us * random.uniform(1.5, 2.5))
    return replace(job, load=random.uniform(1.7, 3.0), load_moves=random.random() < 0.5)


def _recomputing(random: Random) -> Job:
    """Draws a job that recomputes; without recorded operators only a range shows it."""
    job = healthy(random)
    how = random.choice(("range", "checkpoint")) if job.operators else "range"
    return replace(job, recompute=how, recompute_experts=random.random() < 0.7)


def _allocating(random: Random) -> Job:
    """Draws a job whose allocator frees and allocates in the driver, which waits for the device."""
    job = healthy(random)
    each = random.randint(1, 3)
    return replace(job, allocations=each, allocation_us=layer_us(job) * random.uniform(0.12, 0.6) / each)


def _offloading(random: Random) -> Job:
    job = healthy(random)
    return replace(job, offload_us=layer_us(job) * random.uniform(0.15, 0.6))


def _computing(random: Random) -> Job:
    """Draws a job with no loss that a trace could show."""
    job = healthy(random)
    return replace(job, small_us=job.small_us * random.uniform(1.0, 8.0))


def _mixed(random: Random) -> Job:
    """Draws a job with two losses, either of which may be the larger."""
    job = healthy(random)
    layer, step = layer_us(job), step_us(job)
    ills: list[dict[str, Any]] = [
        {"exchange_us": layer * random.uniform(0.1, 0.6) / 4},
        {"recompute": "range"},
        {"data_us": step * random.uniform(0.1, 0.5)},
        {"allocations": 2, "allocation_us": layer * random.uniform(0.05, 0.2)},
        {"bubble_us": layer * job.layers * random.uniform(0.1, 0.5)},
        {"python_us": layer / 40 * random.uniform(0.5, 1.5)},
        {"small_us": job.small_us * random.uniform(5.0, 15.0)},
    ]
    first, second = random.sample(ills, 2)
    return replace(job, **first, **second)


SCENARIOS: Mapping[str, Callable[[Random], Job]] = {
    "exposed_exchange": _exposed_exchange,
    "hidden_exchange": _hidden_exchange,
    "slow_launches": _slow_launches,
    "collecting_garbage": _collecting_garbage,
    "loading_data": _loading_data,
    "pipeline_bubble": _pipeline_bubble,
    "straggler": _straggler,
    "uneven_experts": _uneven_experts,
    "recomputing": _recomputing,
    "allocating": _allocating,
    "offloading": _offloading,
    "computing": _computing,
    "mixed": _mixed,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Traces of a job, with the true cause of its losses."""

    scenario: str
    seed: int
    job: Job
    truth: Truth
    recordings: tuple[Recording, ...]
    steps: Sequence[Sequence[Instruction]] = ()

    def write(self, folder: Path) -> None:
        for recording in self.recordings:
            recording.write(folder)


def draw(scenario: str, seed: int) -> Case:
    """Returns the case of a scenario and seed, the same at every call."""
    random = Random(f"{scenario} {seed}")
    return played(scenario, seed, SCENARIOS[scenario](random), random)


def played(scenario: str, seed: int, job: Job, random: Random) -> Case:
    """Returns the traces of a job that was drawn."""
    if job.steps > 2 and random.random() < 0.3:
        job = replace(job, warm_up=1)
    steps = Builder(job, random).steps()
    start_us = random.uniform(0.0, 1e9)
    recordings = tuple(
        Recording(
            rank=rank,
            ranks=job.ranks,
            clock_us=start_us + random.uniform(0.0, CLOCKS_APART_US) * (rank > 0),
            operators=job.operators,
            memory=random.random() < 0.3,
        )
        for rank in range(job.ranks)
    )
    Machine(job.ranks, recordings).run(steps)
    random.shuffle(recordings[0].events)
    return Case(
        scenario=scenario,
        seed=seed,
        job=job,
        truth=truth(steps, job.ranks, warm_up=job.warm_up),
        recordings=recordings,
        steps=steps,
    )
