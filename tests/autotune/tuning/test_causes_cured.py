"""Whole studies on simulated clusters whose first trace names a cause instead of a wall: the tuner tries the fix for it
with that reason, and the report shows the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cli import main
from autotune.looks.reasons import proposal_text
from autotune.tuning.journal import read_study
from policies.trial import Trial
from tests.rows import filled

LAYOUT = (
    "tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "pipeline_model_parallel_size", "global_batch_size", "seq_length",
)  # fmt: skip
MODEL = {
    "num_layers": 8,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "vocab_size": 32000,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 14336,
}
# so fast at everything else that only the planted cause costs time
MACHINE: dict[str, Any] = {
    "name": "fast",
    "compute": {
        "grouped_gemm": 1.6, "dense_gemm": 1.5, "memory_bound": 4, "attention": 2, "half_rows": 0.05,
        "half_width": 0.05,
    },
    "host": {"launch": 0.3},
    "memory": {"activations": 0.5},
}  # fmt: skip
# the best precision, dispatcher and graphs already, so that no such change gains
SETTLED = {
    "use_distributed_optimizer": True,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
}


def tuned(folder: Path, *, budget: int, machine: dict[str, Any], **recipe: Any) -> tuple[list[Trial], dict[str, Any]]:
    """Returns the trials of a study, and its report.json."""
    (folder / "machine.yaml").write_text(yaml.safe_dump(MACHINE | machine))
    burst = {"engine": "simulated", "machine": str(folder / "machine.yaml")}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"model": MODEL, "burst": burst} | recipe))
    main(["run", str(folder / "recipe.yaml"), "--budget", str(budget), "--study", str(folder / "study")])
    return read_study(folder / "study").trials, json.loads((folder / "study" / "report.json").read_text())


def cause_of(one: Trial) -> str:
    assert one.analysis is not None
    cause = one.analysis.diagnosis.cause
    return cause.name if cause is not None else ""


@pytest.fixture(scope="module")
def busy_experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial], dict[str, Any]]:
    """Tunes a recipe whose router sends one rank's experts twice the other's tokens, with the layout frozen and changes
    of numerics allowed; returns the folder, the trials and report.json."""
    folder = tmp_path_factory.mktemp("experts")
    free = ("precision", "moe_token_dispatcher_type", "cuda_graph_impl", "micro_batch_size")
    trials, report = tuned(
        folder,
        budget=3,
        machine={"routing": {"skew": 2.0, "drift": 0.05}},
        name="busy-experts",
        cluster={"gpu": "h200", "nodes": 1, "gpus_per_node": 2},
        training={"seq_length": 4096, "global_batch_size": 32, "micro_batch_size": 4},
        parallelism={"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
        knobs=SETTLED,
        tune={"allow": "numerics-changing", "freeze": [*LAYOUT, *free]},
    )
    return folder, trials, report


def cured(trials: list[Trial]) -> Trial:
    return next(one for one in trials if one.proposal.fix == "even_experts")


def test_busy_experts_named_by_the_first_trace_are_evened_out(
    busy_experts: tuple[Path, list[Trial], dict[str, Any]],
) -> None:
    _, trials, report = busy_experts
    assert cause_of(trials[0]) == "experts_load"
    assert report["trials"][0]["diagnosis"]["waits"]["experts_load"] > 0
    cure = cured(trials)
    assert cure.changes["moe_expert_capacity_factor"] == (None, 1.25)
    assert "ranks wait for the one with the most expert work for" in proposal_text(cure.proposal)
    assert "evening out the experts' load should recover" in proposal_text(cure.proposal)
    assert cure.accepted
    parent = trials[cure.proposal.parent or 0]
    assert cure.analysis is not None
    assert parent.analysis is not None
    assert cure.analysis.diagnosis.waits["experts_load"] < parent.analysis.diagnosis.waits["experts_load"]


def test_what_evens_the_load_is_kept_by_what_comes_after(
    busy_experts: tuple[Path, list[Trial], dict[str, Any]],
) -> None:
    _, trials, _ = busy_experts
    cure = cured(trials)
    later = filled(one for one in trials if one.number > cure.number)
    assert all(one.recipe.knob("moe_expert_capacity_factor") for one in later)


def test_the_page_names_the_cause_and_what_became_of_it(
    busy_experts: tuple[Path, list[Trial], dict[str, Any]],
) -> None:
    folder, trials, _ = busy_experts
    text = (folder / "study" / "report.md").read_text()
    assert "imbalance: experts of " in text
    page = (folder / "study" / "report.html").read_text()
    assert f"trial {cured(trials).number}: evening out the experts" in page
    assert "experts&#39; load" in page or "experts' load" in page  # lost before and after


def test_a_bubble_is_answered_with_an_interleaved_pipeline_or_more_micro_batches(tmp_path: Path) -> None:
    trials, report = tuned(
        tmp_path,
        budget=2,
        machine={},
        name="bubble",
        cluster={"gpu": "h200", "nodes": 1, "gpus_per_node": 4},
        training={"seq_length": 4096, "global_batch_size": 32, "micro_batch_size": 4},
        parallelism={"pipeline_model_parallel_size": 4},
        knobs=SETTLED,
        tune={"freeze": LAYOUT},
    )
    base, first = trials[:2]
    assert cause_of(base) == "bubble"
    assert proposal_text(first.proposal).startswith("pipeline bubble for ")
    assert "predicted: " in proposal_text(first.proposal)
    assert "pipeline bubble" in proposal_text(first.proposal).partition("predicted: ")[2]
    shorter = first.recipe.knob("micro_batch_size") < base.recipe.knob("micro_batch_size")
    assert shorter or first.recipe.knob("virtual_pipeline_model_parallel_size")
    assert first.accepted
    assert "pipeline bubble, " in (tmp_path / "study" / "report.md").read_text()
    waits = [trial["diagnosis"]["waits"].get("bubble", 0.0) for trial in report["trials"]]
    assert waits[1] < 0.6 * waits[0]
