"""A burst (a short run of one recipe) and its outcome.

The loop passes a `Burst` to an engine, which returns the `Outcome` and writes it to the run folder as `outcome.json`,
where the analyzers and the report find it. Times are microseconds, memory is GiB (2**30 bytes).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trainer.secrets import masked

if TYPE_CHECKING:
    from trainer.recipe.schema import Recipe  # programs on nodes import this module without recipes

# message of torch's allocators, of GPUs and of CPUs, if an allocation fails
_SIZE = r"[\d.]+ (?:bytes|[KMG]iB)"
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_REQUESTED = re.compile(rf"tried to allocate ({_SIZE})", re.IGNORECASE)
# memory of the GPU in the same message, from torch 2.1 on and before it: (total, free, sizes held by the allocator)
_HELD = (
    re.compile(
        rf"capac\w+ of ({_SIZE}) of which ({_SIZE}) is free.*? memory ({_SIZE}) is allocated by PyTorch,.*? "
        rf"({_SIZE}) is reserved by PyTorch but unallocated"
    ),
    re.compile(rf"({_SIZE}) total capacity; .*?({_SIZE}) free; ({_SIZE}) reserved in total"),
)


@dataclass(frozen=True, kw_only=True)
class Burst:
    """One recipe to run. `folder` is its run folder (`bursts/0007`), which the engine creates if needed."""

    number: int
    recipe: Recipe
    folder: Path
    seed: int = 1234
    watch: tuple[int, ...] = ()  # late ranks of the previous burst, which are traced in any case


class FailureKind(StrEnum):
    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    NAN = "nan"
    DIVERGED = "diverged"
    IMPORT = "import"
    CONFIG = "config"
    INFRASTRUCTURE = "infrastructure"
    INTERRUPTED = "interrupted"


class BurstPhase(StrEnum):
    """The phase of a burst that a rank is in.

    A rank writes it to a file at each change, so that it is known even of a rank that was killed.
    """

    START = "start"
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    TRACE = "trace"
    CHECK = "check"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a burst gave no figures.

    `rank` is the rank that failed first, `evidence` the line that shows it, `node` the machine at fault, if any.
    `killed`: by a SIGKILL of unknown origin.
    """

    kind: FailureKind
    phase: BurstPhase | None = None
    rank: int | None = None
    evidence: str
    node: str | None = None
    killed: bool = False

    @property
    def requested_gib(self) -> float | None:
        """Returns the size of the allocation that failed, GiB, from torch's message; None if the message does not have
        it."""
        found = _REQUESTED.search(self.evidence)
        return _gib(found[1]) if found else None

    @property
    def outside_gib(self) -> float | None:
        """Returns the GPU memory that is neither free nor held by torch's allocator, GiB, by the error message.

        It includes memory of other processes, as in `Outcome.outside_gib`. None if the message does not have it, or if
        the allocator holds more than the GPU has (drivers can lend host memory).
        """
        found = next(filter(None, (pattern.search(self.evidence) for pattern in _HELD)), None)
        if found is None:
            return None
        total, *held = map(_gib, found.groups())
        return total - sum(held) if total > sum(held) else None


def _gib(size: str) -> float:
    number, unit = size.split()
    return float(number) * _UNITS[unit.lower()] / 2**30


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between a burst and a run of the recipe's exported command."""

    what: str
    here: str
    production: str
    effect: str  # on time or memory; sizes are estimates


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a burst: measured steps, or `failure` with the steps measured before it.

    Measured steps are neither warm-up nor profiled; a step ends when its slowest rank is done. Lists by rank are in
    rank order.
    """

    schema: int = 1
    failure: Failure | None = None
    step_us: list[float] = []  # per measured step
    cpu_us: list[float] = []  # per measured step, CPU time summed over ranks: less noisy than wall-clock time
    loss: list[float] = []  # per step from the first, warm-up included
    grad_norm: list[float] = []  # per step from the first, if the trainer prints it
    skipped_steps: int = 0  # number of steps that the trainer reports as skipped
    peak_gib: list[float] = []  # per rank
    outside_gib: list[float] = []  # per rank, memory of its GPU outside torch's allocator
    limit_gib: float | None = None  # the same for every rank
    tokens_per_step: int = 0
    ranks: int = 0
    tokens_per_s_per_gpu: float | None = None  # throughput by the median step
    model_tflops_per_gpu: float | None = None
    reported_tflops_per_gpu: float | None = None  # TFLOP/s as the user's trainer counts them
    attainable_tflops_per_gpu: float | None = None  # GEMM rate measured (CPU) or from the hardware table
    cores_per_rank: float | None = None  # CPU cores of the node that a rank may use, shared evenly
    startup_s: float = 0.0  # spent on starting ranks and importing; 0 for a warm burst
    setup_s: float = 0.0  # spent on building model and optimizer
    cost_s: float | None = None  # time from the burst's start to its end, with the start of ranks and without queueing
    simulated: bool = False  # true if computed by a model of the cluster: nothing was measured
    warm: bool = False  # ran on ranks that an earlier burst had started
    layers: str | None = None  # "transformer_engine" or "local"
    versions: dict[str, str] = {}
    acting: dict[str, str | int | float | bool | None] = {}  # knobs as the built model reports them
    # differences of a burst of engine megatron on GPUs from Megatron-LM started by the exported command
    unlike_production: list[Difference] = []
    warnings: list[str] = []

    @property
    def ok(self) -> bool:
        return self.failure is None


def write_burst(burst: Burst) -> None:
    """Creates the run folder and writes `burst.json` to it: the input of the ranks, and a record of the request."""
    burst.folder.mkdir(parents=True, exist_ok=True)
    (burst.folder / "burst.json").write_text(_request(burst))


def _request(burst: Burst) -> str:
    request = {
        "schema": 1,
        "number": burst.number,
        "seed": burst.seed,
        "digest": burst.recipe.digest(),
        "recipe": burst.recipe.model_dump(mode="json"),
    }
    return json.dumps(request, indent=1)


def read_burst(folder: Path) -> Burst:
    """Reads the burst that `write_burst` wrote to the folder; `watch` is not kept there."""
    from trainer.recipe.schema import Recipe

    request = json.loads((folder / "burst.json").read_text())
    recipe = Recipe.model_validate(request["recipe"])
    return Burst(number=request["number"], recipe=recipe, folder=folder, seed=request["seed"])


def was_started(burst: Burst) -> bool:
    """Returns whether this same burst was started in its folder before; it may still run."""
    try:
        return (burst.folder / "burst.json").read_text() == _request(burst)
    except FileNotFoundError:
        return False


def read_outcome(folder: Path) -> Outcome | None:
    """Reads the outcome that `write_outcome` wrote to the folder; returns None if the burst has not ended."""
    try:
        return msgspec.json.decode((folder / "outcome.json").read_bytes(), type=Outcome)
    except FileNotFoundError:
        return None


def write_outcome(folder: Path, outcome: Outcome) -> Outcome:
    """Writes the measured steps to `steps.jsonl`, one per line, and then the outcome to `outcome.json`, atomically and
    with secrets masked. Returns the outcome as written."""
    outcome = _masked(outcome)
    with (folder / "steps.jsonl").open("wb") as steps:
        cpu = outcome.cpu_us or [0.0] * len(outcome.step_us)
        for index, (step_us, cpu_us) in enumerate(zip(outcome.step_us, cpu, strict=True)):
            steps.write(msgspec.json.encode({"step": index, "step_us": step_us, "cpu_us": cpu_us}) + b"\n")
    part = folder / "outcome.json.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    part.replace(folder / "outcome.json")
    return outcome


def _masked(outcome: Outcome) -> Outcome:
    """Returns the outcome with passwords and keys masked in the parts that quote logs."""
    failure = outcome.failure and msgspec.structs.replace(outcome.failure, evidence=masked(outcome.failure.evidence))
    return msgspec.structs.replace(outcome, failure=failure, warnings=[masked(text) for text in outcome.warnings])
