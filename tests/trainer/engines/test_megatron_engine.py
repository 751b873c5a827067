"""Engine `megatron` for real: two CPU ranks, unmodified Megatron-Core, every layout it promises."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import HANG_S
from tests.draws import few
from tests.trainer.engines.gpu_recipes import TINY
from trainer.burst import Burst, FailureKind, Outcome
from trainer.engines.megatron.engine import MegatronEngine
from trainer.recipe import Recipe
from trainer.recipe.frameworks import check_for
from trainer.recipe.rules.rule import FrameworkName

pytestmark = pytest.mark.megatron

MLA: dict[str, Any] = {
    "multi_latent_attention": True,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
}
DELTA_NET: dict[str, Any] = {
    "experimental_attention_variant": "gated_delta_net",
    "linear_attention_freq": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "attention_output_gate": True,
}


def tiny(knobs: dict[str, Any] | None = None, *, trace_steps: int = 0, batch: int = 4, **model: Any) -> Recipe:
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "model": {**TINY, **model},
            "cluster": {"gpu": "cpu", "gpus_per_node": 2},
            "training": {"seq_length": 32, "global_batch_size": batch, "precision": "fp32"},
            "burst": {"warmup_steps": 1, "measure_steps": 2, "trace_steps": trace_steps, "deadline_s": HANG_S},
        }
    )
    return recipe.replace(knobs or {})


def limited(recipe: Recipe, memory_gib: float) -> Recipe:
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"memory_gib": memory_gib})})


def on_one_rank(recipe: Recipe) -> Recipe:
    """Returns the recipe for a test that needs no second rank: each takes seconds to start."""
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"gpus_per_node": 1})})


class Ranks:
    """Ranks that the tests of this file share: importing Megatron-Core takes as long as five bursts.

    Tests that need ranks of their own start others; a test that makes these fail costs the next test their start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = MegatronEngine(folder / "engine")
        self.cold: list[tuple[Recipe, Outcome]] = []  # first bursts on new ranks
        self._numbers = itertools.count(1)
        self._outcomes: dict[str, Outcome] = {}

    def run(self, recipe: Recipe, *, burst_folder: Path | None = None) -> Outcome:
        number = next(self._numbers)
        folder = burst_folder or self.folder / f"{number:04d}"
        outcome = self.engine.run(Burst(number=number, recipe=recipe, folder=folder))
        if outcome.failure is None and not outcome.warm:
            self.cold.append((recipe, outcome))
        return outcome

    def outcome_of(self, recipe: Recipe) -> Outcome:
        """Returns the outcome of the recipe, which runs at the first request."""
        if recipe.digest() not in self._outcomes:
            self._outcomes[recipe.digest()] = self.run(recipe)
        return self._outcomes[recipe.digest()]

    def threads(self) -> int:
        """Returns the threads of rank 0 of the last start."""
        pid_file = max((self.folder / "engine").rglob("rank0.pid"), key=lambda path: path.stat().st_mtime)
        return psutil.Process(int(pid_file.read_text().split()[0])).num_threads()


@pytest.fixture(autouse=True)
def _agent(request: pytest.FixtureRequest) -> None:
    """Leaves torchrun's own agent to the ranks that most tests share."""
    if request.node.get_closest_marker("cold"):
        request.getfixturevalue("light_agent")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("bursts"))
    yield ranks
    ranks.engine.close()


TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EP2 = {"expert_model_parallel_size": 2}
FULL = {"recompute_granularity": "full", "recompute_num_layers": 1}


def selective(*modules: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": modules}


# layouts that run on a CPU, independent settings together: (knobs, model fields)
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # first, since its environment needs ranks of its own: the others would have to start theirs again
    "threads": ({**EP2, "threads_per_rank": 2, "cpu_affinity": "spread"}, {}),
    "dp": ({}, {}),
    "ep": (EP2, {}),
    "ep allgather": ({**EP2, "moe_token_dispatcher_type": "allgather"}, {}),
    "tp sp etp": ({**TP2, "expert_tensor_parallel_size": 2}, {}),
    "tp sp ep": ({**TP2, **EP2, "expert_tensor_parallel_size": 1}, {}),
    "pp vpp": (
        {
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 2,
            "overlap_p2p_comm": True,
        },
        {"num_layers": 4},
    ),
    "cp ep": ({"context_parallel_size": 2, **EP2}, {}),
    "overlaps": (
        {**EP2, "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
        {},
    ),
    "micro batch, gc, grouped query": (
        {**EP2, "micro_batch_size": 2, "manual_gc": True, "manual_gc_interval": 1},
        {"num_query_groups": 2},
    ),
    "shared experts overlapped": (
        {**EP2, "moe_shared_expert_overlap": True},
        {"moe_shared_expert_intermediate_size": 64},
    ),
    "full uniform": ({**EP2, **FULL, "recompute_method": "uniform"}, {}),
    "full block": ({**EP2, **FULL, "recompute_method": "block"}, {}),
    "recompute moe": ({**EP2, **selective("moe")}, {}),
    "recompute core_attn, mlp": ({**EP2, **selective("core_attn", "mlp")}, {"moe_layer_freq": 2}),
    "recompute layernorm": ({**EP2, **selective("layernorm")}, {}),
    "recompute shared_experts": ({**EP2, **selective("shared_experts")}, {"moe_shared_expert_intermediate_size": 64}),
    "recompute moe_act": ({**EP2, **selective("moe_act"), "moe_grouped_gemm": True, "precision": "bf16"}, {}),
    "recompute mla_up_proj": ({**EP2, **selective("mla_up_proj")}, MLA),
    "whole queries": (
        {**TP2, **EP2, "expert_tensor_parallel_size": 1},
        {**MLA, "q_lora_rank": None, "qk_layernorm": True},
    ),
    "gated delta net": ({**TP2, **EP2, "expert_tensor_parallel_size": 1}, DELTA_NET),
}


# all of these compute the same numbers as plain EP2, each in its own way
SAME_AS_EP2 = ["ep allgather", "tp sp ep", "cp ep", "overlaps", "full uniform", "recompute moe", "recompute layernorm"]
QUICK = (
    "ep",
    "ep allgather",
    "tp sp ep",
    "cp ep",
    "overlaps",
    "full uniform",
    "pp vpp",
    "gated delta net",
    "whole queries",
)


def layouts(names: Iterable[str] = LAYOUTS) -> list[Any]:
    """Returns the layouts; those that set the environment of ranks need their own ranks, and are `cold`."""
    return [pytest.param(name, marks=_marks(name)) for name in names]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    if "threads_per_rank" in LAYOUTS[name][0]:
        return [pytest.mark.cold]
    return [pytest.mark.thorough] * (name not in QUICK)


@pytest.mark.parametrize("name", layouts())
def test_every_layout_trains(ranks: Ranks, name: str) -> None:
    knobs, model = LAYOUTS[name]
    outcome = ranks.outcome_of(tiny(knobs, **model))
    assert outcome.failure is None
    assert len(outcome.step_us) == len(outcome.cpu_us) == 2
    assert len(outcome.loss) == 3
    assert abs(outcome.loss[0] - math.log(128)) < 0.2  # an untrained model gives every word the same probability
    assert outcome.loss[-1] < outcome.loss[0]
    assert len(outcome.peak_gib) == 2
    assert outcome.outside_gib == []  # a CPU process has no memory outside an allocator
    assert outcome.tokens_per_s_per_gpu is not None
    assert outcome.tokens_per_s_per_gpu > 0
    assert outcome.layers == "local"
    for knob in set(knobs) & set(outcome.acting):
        wanted = knobs[knob]
        assert outcome.acting[knob] == (",".join(wanted) if isinstance(wanted, tuple) else wanted)


@pytest.mark.parametrize("name", layouts(SAME_AS_EP2))
def test_training_equivalent_knobs_give_the_losses_of_the_plain_recipe(ranks: Ranks, name: str) -> None:
    plain = ranks.outcome_of(tiny(EP2))
    knobs, model = LAYOUTS[name]
    assert ranks.outcome_of(tiny(knobs, **model)).loss == pytest.approx(plain.loss, rel=1e-4)


def test_a_warm_burst_gives_the_losses_of_a_cold_one(ranks: Ranks) -> None:
    ranks.outcome_of(tiny(EP2))
    recipe, cold = ranks.cold[0]
    ranks.outcome_of(tiny(LAYOUTS["tp sp ep"][0]))
    warm = ranks.run(recipe)
    assert warm.warm
    assert not cold.warm
    assert cold.startup_s > 0.5 > warm.startup_s
    assert warm.loss == cold.loss


def test_sends_that_overlap_with_computing_change_no_loss(ranks: Ranks) -> None:
    """Freeing or reusing a tensor while it is being sent changes the losses, differently each time."""
    knobs, model = LAYOUTS["pp vpp"]
    first = ranks.outcome_of(tiny(knobs, **model))
    again = [ranks.run(tiny(knobs, **model)) for _ in range(2)]
    assert [outcome.failure for outcome in (first, *again)] == [None] * 3
    assert [outcome.loss for outcome in again] == [first.loss] * 2


@pytest.mark.parametrize(
    "name", few(["overlaps", "ep"], 1), ids=["overlapped distributed optimizer", "whole optimizer"]
)
def test_a_warm_rank_keeps_nothing_of_a_burst(ranks: Ranks, name: str) -> None:
    """Models, process groups and their threads: what stays behind slows every later burst."""

    def threads_after_a_burst() -> int:
        assert ranks.run(tiny(LAYOUTS[name][0])).failure is None
        return ranks.threads()

    first, last = [threads_after_a_burst() for _ in range(2)]
    assert last < first + 15  # a leak keeps 48 threads a burst; a closed group's listeners may end a little later


@pytest.mark.cold
def test_expert_replicas_that_train_apart_are_a_failure(ranks: Ranks) -> None:
    recipe = tiny({**TP2, "expert_tensor_parallel_size": 1})
    outcome = ranks.run(recipe)
    wrong_here = {finding.rule for finding in check_for(recipe, FrameworkName.CORE, version("megatron-core"))}
    if "single-expert-replicas" not in wrong_here:  # mended in 0.19
        assert outcome.failure is None
        return
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.DIVERGED
    assert ".experts." in outcome.failure.evidence
    assert outcome.tokens_per_s_per_gpu is None


@pytest.mark.cold
def test_the_lock_of_a_killed_compilation_stops_no_later_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    lock = tmp_path / "engine" / "extensions" / "share_storage_ext" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    engine = MegatronEngine(tmp_path / "engine")
    recipe = on_one_rank(tiny(selective("layernorm")))
    try:
        outcome = engine.run(Burst(number=1, recipe=recipe, folder=tmp_path / "0001"))
    finally:
        engine.close()
    assert outcome.failure is None
    assert outcome.loss
    assert not lock.exists()


@pytest.mark.cold
def test_what_megatron_refuses_is_a_bad_configuration(ranks: Ranks) -> None:
    outcome = ranks.run(on_one_rank(tiny(selective("moe_act"))))
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.CONFIG
    assert "moe_act" in outcome.failure.evidence


def test_a_trace_a_rank_names_what_a_wall_is_made_of(ranks: Ranks, tmp_path: Path) -> None:
    knobs = {**EP2, **FULL, "recompute_method": "uniform"}
    ranks.run(tiny(knobs, trace_steps=2, moe_shared_expert_intermediate_size=64), burst_folder=tmp_path / "traced")
    for rank in (0, 1):
        with gzip.open(tmp_path / "traced" / "trace" / f"rank{rank}.pt.trace.json.gz") as trace:
            names = {event["name"] for event in json.load(trace)["traceEvents"] if "name" in event}
        assert {"ProfilerStep#1", "ProfilerStep#2", "gloo:all_to_all"} <= names
        assert {
            "step", "forward_microbatch", "backward_microbatch", "attention", "router", "dispatch", "experts",
            "combine", "shared_experts", "recompute", "gradient_sync", "optimizer",
        } <= names  # fmt: skip


def test_the_peak_stays_below_the_enforced_limit_and_repeats(ranks: Ranks) -> None:
    recipe = tiny({**EP2, "micro_batch_size": 4, "seq_length": 256}, batch=8, vocab_size=4096)
    first = ranks.run(recipe)
    held = ranks.run(limited(recipe, max(first.peak_gib) * 1.3))
    assert held.failure is None
    assert max(held.peak_gib) <= max(first.peak_gib) * 1.3
    # fresh ranks also touch library code and thread buffers for the first time: about 25 MiB, whatever the model
    assert max(held.peak_gib) == pytest.approx(max(first.peak_gib), abs=0.04)


@pytest.mark.cold
def test_a_loss_that_is_not_a_number_is_a_failure_with_its_step(tmp_path: Path) -> None:
    engine = MegatronEngine(tmp_path / "engine", worker="tests.trainer.engines.nan_worker")
    outcome = engine.run(Burst(number=1, recipe=on_one_rank(tiny()), folder=tmp_path / "burst"))
    engine.close()
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.NAN
    assert "step 1" in outcome.failure.evidence


@pytest.mark.cold
def test_no_secret_that_a_rank_prints_is_in_what_a_burst_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that are still up, and ranks that failed."""
    monkeypatch.setenv("MY_HUB_TOKEN", "correct-horse")
    monkeypatch.setenv("MOE_AUTOTUNE_TEST_FAILS", str(tmp_path / "fails"))
    engine = MegatronEngine(tmp_path / "engine", worker="tests.trainer.engines.telling_worker")
    recipe = on_one_rank(tiny())
    first = engine.run(Burst(number=1, recipe=recipe, folder=tmp_path / "0001"))
    assert first.failure is None
    assert "logged in with <left out>" in (tmp_path / "0001/log/rank0.log").read_text()
    (tmp_path / "fails").touch()
    second = engine.run(Burst(number=2, recipe=recipe, folder=tmp_path / "0002"))
    engine.close()
    assert second.failure is not None
    assert "401 for <left out>" in second.failure.evidence
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) > 6
    assert [str(path) for path in left if b"correct-horse" in path.read_bytes()] == []


# phase in which the recipe cannot have its next allocation: (limit GiB, model fields, knobs), without knobs on one rank
OUT_OF_MEMORY: dict[str, tuple[float, dict[str, Any], dict[str, Any]]] = {
    "init": (0.05, {"hidden_size": 512, "vocab_size": 32_000}, {}),
    "forward": (0.06, {"vocab_size": 16_000}, {**EP2, "micro_batch_size": 4, "seq_length": 512}),
    "backward": (0.3, {"num_layers": 4, "hidden_size": 256, "moe_ffn_hidden_size": 1024, "num_moe_experts": 2},
                 {**EP2, **FULL, "recompute_method": "uniform", "micro_batch_size": 4, "seq_length": 512}),
    "optimizer": (0.45, {"vocab_size": 200_000}, {}),
}  # fmt: skip


def phases() -> list[Any]:
    """Returns the phases, all but one marked `cold`: every failure costs the next test a start of ranks."""
    return [pytest.param(phase, marks=[pytest.mark.cold] * (phase != "forward")) for phase in OUT_OF_MEMORY]


@pytest.mark.parametrize("phase", phases())
def test_running_out_of_memory_is_a_real_failure_with_its_phase(ranks: Ranks, phase: str) -> None:
    memory_gib, model, knobs = OUT_OF_MEMORY[phase]
    recipe = limited(tiny(knobs, batch=8, **model), memory_gib)
    outcome = ranks.run(recipe if knobs else on_one_rank(recipe))
    assert outcome.failure is not None, f"ran with a peak of {outcome.peak_gib}"
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.OOM, phase)
    assert outcome.failure.rank in (0, 1)
