"""The tuner's side of engine `megatron`: keeps ranks running between bursts, sends them bursts and combines their
reports. It imports no torch. Where the launcher keeps ranks, they are reused for bursts on the same nodes with the same
world size, environment and launcher, and started again after any failure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trainer.above_peak import above_peak
from trainer.burst import Burst, Failure, Outcome, write_burst, write_outcome
from trainer.failures import Evidence, RankEvidence, classify
from trainer.frameworks.megatron_lm.required import required_environment
from trainer.launchers import RankResult, Ranks, mailbox
from trainer.launchers.control import JOBS
from trainer.launchers.extensions import extensions_environment
from trainer.launchers.open import open_launcher
from trainer.launchers.warm import WarmRanks, start_ranks
from trainer.model.flops import model_flops_per_token
from trainer.rank_report import RankReport
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS


class MegatronEngine:
    """Engine that runs our worker with Megatron-Core; `trainer.engines.Engine` documents its methods."""

    def __init__(
        self, state_dir: Path, *, worker: str = "trainer.worker", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state_dir, self._worker, self._clock = state_dir, worker, clock
        self._ranks: Ranks | None = None
        self._started_with: tuple[object, ...] | None = None
        self._starts = 0

    def run(self, burst: Burst) -> Outcome:
        write_burst(burst)
        started = self._clock()
        ranks, warm = self._ranks_for(burst)
        result = ranks.run(burst.folder, deadline_s=burst.recipe.burst.deadline_s)
        queued_s = 0.0 if warm else ranks.queued_s
        if result.failure is not None or not open_launcher(burst.recipe, self._state_dir).keeps_ranks:
            self.close()
        return _outcome(burst, result, warm=warm, cost_s=self._clock() - started - queued_s)

    def adopt(self, burst: Burst) -> Outcome | None:
        """Takes over a job that an earlier tuner started; without one, the reports of its ranks if all have written
        theirs."""
        recipe = burst.recipe
        processes = open_launcher(recipe, self._state_dir).adopt(
            nodes=recipe.cluster.nodes,
            ranks_per_node=recipe.ranks_per_node,
            control=(self._state_dir / JOBS / burst.folder.name).resolve(),
        )
        if processes is None:
            return self._reported(burst)
        ranks = WarmRanks(processes=processes, once=True)
        try:
            result = ranks.resume(burst.folder, deadline_s=recipe.burst.deadline_s)
        finally:
            ranks.end()
        return _outcome(burst, result, warm=False, cost_s=processes.ran_s)

    def _reported(self, burst: Burst) -> Outcome | None:
        found = [mailbox.report_of(burst.folder, rank) for rank in range(burst.recipe.world_size)]
        reports = [report for report in found if report is not None and report.error is None]
        if len(reports) < burst.recipe.world_size:
            return None
        failure = classify(Evidence(ranks=[RankEvidence(rank=each.rank, report=each) for each in reports]))
        spent_s = max(each.startup_s + each.setup_s + sum(each.step_us) / 1e6 for each in reports)
        return _outcome(burst, RankResult(reports=tuple(reports), failure=failure), warm=False, cost_s=spent_s)

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.end()
        self._ranks = None

    def _ranks_for(self, burst: Burst) -> tuple[Ranks, bool]:
        """Returns ranks for the recipe, and whether they ran before.

        Raises ToolError if the launcher does not have the machines that the recipe asks for.
        """
        recipe = burst.recipe
        environment = environment_of(recipe)
        wanted = (recipe.cluster.nodes, recipe.world_size, environment, recipe.burst.launcher)
        if self._ranks is not None and self._ranks.alive and self._started_with == wanted:
            return self._ranks, True
        self.close()
        self._starts += 1
        launcher = open_launcher(recipe, self._state_dir)
        kept = launcher.keeps_ranks
        self._ranks = start_ranks(
            launcher,
            nodes=recipe.cluster.nodes,
            ranks_per_node=recipe.ranks_per_node,
            env=extensions_environment(self._state_dir, environment) | environment,
            folder=self._state_dir / (f"ranks-{self._starts}" if kept else JOBS),
            name=None if kept else burst.folder.name,
            module=self._worker,
        )
        self._started_with = wanted
        return self._ranks, False


def _outcome(burst: Burst, result: RankResult, *, warm: bool, cost_s: float) -> Outcome:
    outcome = outcome_of(burst.recipe, result.reports, result.failure, warm=warm)
    outcome = msgspec.structs.replace(outcome, cost_s=round(cost_s, 3))
    return write_outcome(burst.folder, outcome)


def environment_of(recipe: Recipe) -> dict[str, str]:
    """Returns the environment variables that the recipe sets, and those that production requires where it sets none.

    Ranks read them only when they start. A recipe for CPUs sees no GPU, so that it runs the same on machines that have
    one, and compiles nothing (Megatron's jit_fuser is torch.compile), since that takes longer than a burst on CPUs.
    """
    values = {name: recipe.knob(name) for name, knob in KNOBS.items() if knob.acts == "environment"}
    set_by_knobs = {name: str(value) for name, value in values.items() if value is not None}
    if recipe.hardware.is_cpu:
        return set_by_knobs | {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"} | recipe.burst.env
    demanded = {name: requirement.words[0] for name, requirement in required_environment(recipe).items()}
    return demanded | set_by_knobs | recipe.burst.env


def outcome_of(recipe: Recipe, reports: Sequence[RankReport], failure: Failure | None, *, warm: bool) -> Outcome:
    """Combines all ranks' reports into one outcome: a step lasts as long as its slowest rank."""
    if not reports:
        return Outcome(failure=failure, ranks=recipe.world_size, limit_gib=recipe.memory_limit_gib, warm=warm)
    first = reports[0]
    step_us = [max(step) for step in zip(*(r.step_us for r in reports), strict=False)]
    tokens = recipe.training.tokens_per_step
    rate = tokens / (statistics.median(step_us) / 1e6) / recipe.world_size if step_us and not failure else None
    flops = model_flops_per_token(recipe.architecture, recipe.training.seq_length)
    counted = rate * flops / 1e12 if rate is not None else None
    measured = [r.attainable_tflops for r in reports if r.attainable_tflops is not None]
    return Outcome(
        failure=failure,
        step_us=step_us,
        cpu_us=[sum(step) for step in zip(*(r.cpu_us for r in reports), strict=False)],
        loss=next((r.loss for r in reports if r.loss), []),
        peak_gib=[r.peak_gib for r in reports],
        outside_gib=[r.outside_gib for r in reports if r.outside_gib is not None],
        limit_gib=first.limit_gib,
        tokens_per_step=tokens,
        ranks=recipe.world_size,
        tokens_per_s_per_gpu=rate,
        model_tflops_per_gpu=counted,
        attainable_tflops_per_gpu=min(measured) if measured else recipe.peak_tflops,
        cores_per_rank=first.cores,
        startup_s=max(r.startup_s for r in reports),
        setup_s=max(r.setup_s for r in reports),
        warm=warm,
        layers=first.layers,
        versions=first.versions,
        acting=first.acting,
        unlike_production=list({row.what: row for r in reports for row in r.differences}.values()),
        warnings=[*sorted({text for r in reports for text in r.warnings}), *above_peak(recipe, counted=counted)],
    )
