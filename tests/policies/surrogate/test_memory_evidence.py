"""Memory outside torch's allocator, as a trial shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec.structs import replace as altered

from policies.surrogate.evidence import evidence_of
from tests.policies.drawn import gpu_recipe, out_of_memory, outcome, trial
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome

RECIPE = gpu_recipe()
SAID = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0.50 GiB is "
    "free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but "
    "unallocated."
)  # 4.5 GiB outside the allocator: 80 - 0.5 - 70 - 5


def ran(*held_gib: float) -> Outcome:
    return altered(outcome(RECIPE), outside_gib=list(held_gib))


def ran_out(*held_gib: float, phase: BurstPhase, said: str = "") -> Outcome:
    failure = Failure(kind=FailureKind.OOM, phase=phase, rank=1, evidence=said)
    return altered(out_of_memory(RECIPE), failure=failure, outside_gib=list(held_gib))


@pytest.mark.parametrize(
    ("outcomes", "outside_gib"),
    [
        ((ran(3.0, 3.5, 2.0),), 3.5),
        ((ran(3.0, 3.5), ran(4.0, 3.0)), 4.0),
        ((ran(),), None),
        ((ran_out(3.0, 3.2, phase=BurstPhase.BACKWARD, said=SAID),), 3.2),
        ((ran_out(phase=BurstPhase.FORWARD, said=SAID),), 4.5),
        ((ran_out(phase=BurstPhase.FORWARD, said="CUDA error: out of memory"),), None),
        ((ran_out(1.0, phase=BurstPhase.INIT, said=SAID),), None),  # no communicator yet
    ],
    ids=["ran", "two bursts", "CPU ranks", "ran out", "message", "no message", "before its steps"],
)
def test_the_most_that_a_gpu_held_outside_the_allocator_is_known(
    outcomes: Sequence[Outcome], outside_gib: float | None
) -> None:
    played = replace(trial(RECIPE, given=outcomes[0]), outcomes=tuple(outcomes))
    assert evidence_of([played])[0].outside_gib == outside_gib
