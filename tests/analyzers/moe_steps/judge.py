"""Diagnoses a case and judges the diagnosis: right, wrong, or wrong and confident."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from analyzers import analyze
from analyzers.diagnosis import Diagnosis, Wall
from analyzers.verdict import THRESHOLDS
from tests.analyzers.moe_steps.scenarios import Case, draw
from tests.analyzers.moe_steps.truth import NO_WALL, Loss


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Diagnosis of one case.

    stated: the share of the step that each wall gives back at most, by the diagnosis; real: the share it really gives
    back.
    """

    scenario: str
    seed: int
    accepted: frozenset[Wall]
    leader: Loss | None
    verdict: Wall
    because: str
    margin: float
    stated: dict[str, float]
    real: dict[str, float]

    @property
    def right(self) -> bool:
        return self.verdict in self.accepted and self._loss_is_named

    @property
    def confident_and_wrong(self) -> bool:
        """Returns whether a wrong wall is named, with the margin that a sure verdict needs."""
        named = self.verdict is not Wall.UNDETERMINED
        return named and self.verdict not in self.accepted and self.margin >= THRESHOLDS["margin"]

    @property
    def _loss_is_named(self) -> bool:
        """Returns whether the verdict's words name a leading loss that is no wall; true as well if a wall leads or
        several verdicts are accepted."""
        if self.leader not in NO_WALL or len(self.accepted) > 1:
            return True
        return re.search(NO_WALL[self.leader], self.because) is not None

    def __str__(self) -> str:
        def shares(of: dict[str, float]) -> str:
            return " ".join(f"{name}={share:.3f}" for name, share in of.items() if share > 0.001)

        return (
            f"{self.scenario} {self.seed}: {self.verdict} (margin {self.margin:.3f}), right: "
            f"{'|'.join(sorted(self.accepted))} ({self.leader})\n    because: {self.because}\n"
            f"    stated: {shares(self.stated)}\n    real:   {shares(self.real)}"
        )


def judge(case: Case) -> Judged:
    with tempfile.TemporaryDirectory() as folder:
        case.write(Path(folder))
        diagnosis = analyze([Path(folder)]).diagnosis
    return _compared(case, diagnosis)


def judge_all(cases: Iterable[tuple[str, int]]) -> list[Judged]:
    """Returns the judged cases, each given by scenario and seed."""
    return [judge(draw(scenario, seed)) for scenario, seed in cases]


def _compared(case: Case, diagnosis: Diagnosis) -> Judged:
    return Judged(
        scenario=case.scenario,
        seed=case.seed,
        accepted=frozenset(case.truth.accepted),
        leader=case.truth.leader,
        verdict=diagnosis.wall,
        because=diagnosis.because,
        margin=diagnosis.margin,
        stated={str(finding.wall): finding.share for finding in diagnosis.walls},
        real={str(loss): gain for loss, gain in case.truth.gain.items()},
    )
