"""Recipes, analyses and trials drawn by hand, and what the tuner knows of them, for tests of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from policies.candidates.knowledge import Knowledge
from policies.reason import Reason, ReasonKind
from policies.search.avoid import Avoid
from policies.situation import situation_of
from policies.surrogate.surrogate import fit_surrogate
from policies.trial import Phase, Proposal, Status, Trial, Verdict
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.probe.links import Links
from trainer.recipe import Recipe

STEP_US = 140_000.0

SMALL_MODEL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 512,
}


def cpu_recipe(changes: Mapping[str, Any] | None = None, **tune: Any) -> Recipe:
    """Returns a recipe of two CPU ranks, EP2, and sixteen sequences per step."""
    recipe = Recipe.model_validate(
        {
            "name": "cpu",
            "model": SMALL_MODEL,
            "cluster": {"gpu": "cpu", "gpus_per_node": 2, "memory_gib": 2.0},
            "training": {"seq_length": 256, "global_batch_size": 16, "micro_batch_size": 1},
            "parallelism": {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
            "tune": tune,
        }
    )
    return recipe.replace(dict(changes or {}))


def gpu_recipe(changes: Mapping[str, Any] | None = None, **tune: Any) -> Recipe:
    """Returns Qwen3-30B-A3B on two nodes of eight H100."""
    recipe = Recipe.model_validate(
        {
            "name": "qwen",
            "model": "qwen3-30b-a3b",
            "cluster": {"gpu": "h100", "nodes": 2},
            "training": {"seq_length": 4096, "global_batch_size": 256, "micro_batch_size": 1},
            "parallelism": {"expert_model_parallel_size": 16, "expert_tensor_parallel_size": 1},
            "knobs": {"use_distributed_optimizer": True, "moe_grouped_gemm": True},
            "tune": tune,
        }
    )
    return recipe.replace(dict(changes or {}))


def analysis(walls: Mapping[Wall, Mapping[str, float]], *, recompute_us: float = 0.0) -> Analysis:
    """Returns one step of `STEP_US` with these recoverable microseconds by wall and part."""
    findings = [
        WallFinding(
            wall=wall,
            recoverable_us=sum(parts.values()),
            share=sum(parts.values()) / STEP_US,
            evidence=["drawn by hand"],
            parts=dict(parts),
        )
        for wall, parts in walls.items()
    ]
    findings.sort(key=lambda finding: -finding.recoverable_us)
    communication = walls.get(Wall.COMMUNICATION, {})
    exposed = sum(communication.values())
    step = Partition(
        name="ProfilerStep#1",
        start_us=0.0,
        duration_us=STEP_US,
        busy_us=STEP_US,
        compute_us=STEP_US - exposed,
        communication_us=exposed,
        exposed_communication_us=exposed,
        communication_by_kind={
            kind: CommunicationTime(busy_us=us, exposed_us=us) for kind, us in communication.items()
        },
        copy_us=0.0,
        exposed_copy_us=0.0,
        idle_us=0.0,
        idle_by_cause=IdleByCause(),
        recompute_us=recompute_us,
    )
    report = TraceReport(
        path="drawn", format="kineto", rank=0, devices=[0], span=step, steps=[step],
        coverage=Coverage(device_time_classified=1.0, kernels=100),
    )  # fmt: skip
    leading = findings[0].wall if findings else Wall.UNDETERMINED
    diagnosis = Diagnosis(wall=leading, margin=0.1, because="drawn by hand", walls=findings)
    return Analysis(diagnosis=diagnosis, traces=[report])


def outcome(recipe: Recipe, *, tokens_per_s: float = 1000.0, peak_gib: float = 1.0) -> Outcome:
    return Outcome(
        step_us=[STEP_US] * 3,
        cpu_us=[0.0] * 3,
        peak_gib=[peak_gib] * recipe.world_size,
        limit_gib=recipe.memory_limit_gib,
        tokens_per_step=recipe.training.tokens_per_step,
        ranks=recipe.world_size,
        tokens_per_s_per_gpu=tokens_per_s,
    )


def out_of_memory(recipe: Recipe) -> Outcome:
    failure = Failure(kind=FailureKind.OOM, phase=BurstPhase.FORWARD, rank=1, evidence="can't allocate memory")
    return Outcome(failure=failure, limit_gib=recipe.memory_limit_gib)


def trial(
    recipe: Recipe,
    *,
    number: int = 0,
    parent: Trial | None = None,
    phase: Phase = Phase.FIT,
    fix: str = "base",
    given: Outcome | None = None,
    seen: Analysis | None = None,
    verdict: Verdict | None = Verdict.ACCEPTED,
) -> Trial:
    given = given or outcome(recipe)
    return Trial(
        number=number,
        proposal=Proposal(
            recipe=recipe,
            parent=parent.number if parent else None,
            phase=phase,
            fix=fix,
            reason=Reason(kind=ReasonKind.BASE),
        ),
        changes=parent.recipe.diff(recipe) if parent else {},
        bursts=(number,),
        outcomes=(given,),
        status=Status.OK if given.ok else Status.OOM,
        analysis=seen,
        verdict=verdict,
    )


def failed(
    recipe: Recipe,
    evidence: str,
    *,
    number: int = 1,
    kind: FailureKind = FailureKind.CONFIG,
    parent: Trial | None = None,
) -> Trial:
    """Returns a trial that ended before its first step with an error."""
    failure = Failure(
        kind=kind, phase=BurstPhase.INIT, rank=0, evidence=f"rank 0 exited with code 1 in init: {evidence}"
    )
    found = trial(recipe, number=number, parent=parent, given=Outcome(failure=failure), verdict=Verdict.REJECTED)
    return replace(found, status=Status.FAILED)


def ran(proposal: Proposal, number: int, parent: Trial, given: Outcome, verdict: Verdict = Verdict.REJECTED) -> Trial:
    """Returns a proposal with its outcome, judged."""
    status = Status.OK if given.ok else Status.OOM
    found = trial(proposal.recipe, number=number, parent=parent, given=given, verdict=verdict)
    return replace(found, proposal=proposal, status=status)


def knowledge(
    incumbent: Trial, *others: Trial, given: Recipe | None = None, limit_gib: float | None = None
) -> Knowledge:
    """Returns the tuner's knowledge after the incumbent and other trials of its study."""
    trials = (incumbent, *others)
    limit_gib = incumbent.recipe.memory_limit_gib if limit_gib is None else limit_gib
    return Knowledge(
        given=given or incumbent.recipe,
        incumbent=incumbent,
        trials=trials,
        situation=situation_of(incumbent),
        surrogate=fit_surrogate(trials, limit_gib=limit_gib),
        avoid=Avoid(trials),
    )


def tuned_by(recipe: Recipe, **settings: Any) -> Recipe:
    """Returns the recipe with other settings under `tune`."""
    return recipe.model_copy(update={"tune": recipe.tune.model_copy(update=settings)})


def links(bandwidth_gb_s: float, latency_us: float = 25.0) -> Links:
    return Links(
        nodes=2,
        ranks_per_node=8,
        backend="nccl",
        hosts=["n1", "n2"],
        interfaces=["ib0"],
        bandwidth_gb_s=bandwidth_gb_s,
        message_mib=256.0,
        latency_us=latency_us,
        clocks_apart_s=0.001,
        folder_lag_s=0.0,
    )
