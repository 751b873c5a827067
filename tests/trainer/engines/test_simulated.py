from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from trainer.engines.simulated.model import Op, Stream, step_of
from trainer.engines.simulated.play import play

from analyzers import analyze
from tests.policies.drawn import cpu_recipe, gpu_recipe
from trainer.burst import Burst, BurstPhase, FailureKind, Outcome, read_burst
from trainer.engines import open_engine
from trainer.engines.simulated import Machine, SimulatedEngine
from trainer.recipe import Recipe

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
PP2 = {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8}
ROOMY = Machine(memory_scale=0.3)


def run(recipe: Recipe, folder: Path, *, number: int = 0, machine: Machine = ROOMY) -> Outcome:
    engine = SimulatedEngine(folder, machine=machine)
    return engine.run(Burst(number=number, recipe=recipe, folder=folder / f"{number:04d}"))


def step_us(recipe: Recipe, machine: Machine = ROOMY) -> float:
    return play(step_of(recipe, machine)).duration_us


def test_the_engine_is_found_by_its_name(tmp_path: Path) -> None:
    assert isinstance(open_engine("simulated", tmp_path), SimulatedEngine)


def test_a_burst_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    outcome = run(gpu_recipe(), tmp_path)
    folder = tmp_path / "0000"
    assert outcome.ok
    assert read_burst(folder).recipe == gpu_recipe()
    assert json.loads((folder / "outcome.json").read_text())["tokens_per_s_per_gpu"] == outcome.tokens_per_s_per_gpu
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 8
    assert sorted(p.name for p in (folder / "trace").iterdir()) == [
        "rank0.pt.trace.json.gz",
        "rank15.pt.trace.json.gz",
    ]
    assert (folder / "log" / "rank0.log").read_text()


def test_the_same_burst_gives_the_same_outcome_and_a_repeat_differs(tmp_path: Path) -> None:
    first = run(gpu_recipe(), tmp_path / "a")
    assert run(gpu_recipe(), tmp_path / "b") == first
    repeat = run(gpu_recipe(), tmp_path / "a", number=1)
    assert repeat.step_us != first.step_us
    assert repeat.step_us[0] == pytest.approx(first.step_us[0], rel=0.05)


def test_steps_and_trace_tell_the_same_time(tmp_path: Path) -> None:
    outcome = run(gpu_recipe(), tmp_path, machine=Machine(memory_scale=0.3, noise=0.0, burst_noise=0.0))
    for trace in analyze([tmp_path / "0000"]).traces:
        assert len(trace.steps) == 2
        for step in trace.steps:
            assert step.duration_us == pytest.approx(outcome.step_us[0], rel=1e-6)


def test_every_kernel_has_a_launch_and_a_known_name(tmp_path: Path) -> None:
    run(gpu_recipe(FULL | PP2), tmp_path)
    trace = tmp_path / "0000" / "trace" / "rank0.pt.trace.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    launched = [e["args"]["correlation"] for e in events if e["cat"] == "cuda_runtime"]
    ran = [e["args"]["correlation"] for e in events if e["cat"] == "kernel"]
    assert sorted(launched) == sorted(ran)
    assert len(set(ran)) == len(ran)
    report = analyze([tmp_path / "0000"]).traces[0]
    assert report.coverage.device_time_classified == 1.0
    assert report.coverage.kernels_unknown == []


def test_each_communication_is_read_as_its_kind(tmp_path: Path) -> None:
    tp2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1}
    run(gpu_recipe(tp2 | PP2 | {"context_parallel_size": 2}), tmp_path)
    kinds = analyze([tmp_path / "0000"]).traces[0].steps[0].communication_by_kind
    assert {"ep_dispatch", "ep_combine", "tp", "cp", "pp", "dp"} <= set(kinds)


def test_recompute_is_read_as_recompute(tmp_path: Path) -> None:
    run(gpu_recipe(FULL), tmp_path)
    step = analyze([tmp_path / "0000"]).traces[0].steps[0]
    assert 0.15 < step.recompute_us / step.duration_us < 0.4


def test_a_recipe_that_needs_too_much_runs_out_of_memory_in_a_phase(tmp_path: Path) -> None:
    outcome = run(gpu_recipe(), tmp_path, machine=Machine(memory_offset_gib=79.0))
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.OOM
    assert outcome.failure.phase is BurstPhase.INIT
    assert not (tmp_path / "0000" / "trace").exists()


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        (FULL, {}),
        ({"expert_model_parallel_size": 16}, {"expert_model_parallel_size": 8}),
        ({}, {"overlap_moe_expert_parallel_comm": True}),
        ({}, {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}),
        ({}, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
        (PP2, PP2 | {"virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True}),
        ({"moe_grouped_gemm": False}, {}),
        ({}, {"micro_batch_size": 4}),
    ],
    ids=["recompute", "EP", "EP overlap", "dispatcher", "DP overlap", "VPP", "grouped GEMM", "micro batch"],
)
def test_a_knob_moves_the_step_as_on_a_cluster(slower: dict[str, object], faster: dict[str, object]) -> None:
    assert step_us(gpu_recipe(faster)) < step_us(gpu_recipe(slower))


def test_threads_help_up_to_the_cores() -> None:
    one, two, four = (step_us(cpu_recipe({"threads_per_rank": threads})) for threads in (1, 2, 4))
    assert two < one
    assert four == two


def test_a_slow_host_leaves_the_device_idle(tmp_path: Path) -> None:
    run(gpu_recipe(), tmp_path, machine=Machine(launch_us=200.0, memory_scale=0.3))
    step = analyze([tmp_path / "0000"]).traces[0].steps[0]
    assert step.idle_by_cause.host_us > 0.3 * step.duration_us


def test_a_cluster_of_16384_gpus_writes_two_traces(tmp_path: Path) -> None:
    recipe = gpu_recipe()
    large = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"nodes": 2048})})
    large = large.replace({"global_batch_size": 16384})
    outcome = run(large, tmp_path)
    assert outcome.ranks == len(outcome.peak_gib) == 16384
    assert len(list((tmp_path / "0000" / "trace").iterdir())) == 2


def test_work_on_the_side_stream_runs_beside_compute() -> None:
    ops = [
        Op(kernel="side", device_us=50.0, host_us=1.0, stream=Stream.SIDE),
        Op(kernel="compute", device_us=60.0, host_us=1.0),
    ]
    side, compute = play(ops).ops
    assert side.start_us < compute.start_us < side.end_us
    assert play(ops).duration_us < 50.0 + 60.0
