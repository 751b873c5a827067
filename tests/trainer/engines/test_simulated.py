from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from analyzers import analyze
from analyzers.diagnosis import Partition, Wall
from tests.draws import few
from tests.policies.drawn import cpu_recipe, gpu_recipe
from tests.policies.tuned import on_machine
from trainer.burst import Burst, BurstPhase, FailureKind, Outcome, read_burst
from trainer.engines import open_engine
from trainer.engines.simulated import Machine, SimulatedEngine, true_throughput
from trainer.engines.simulated.engine import memory_of
from trainer.engines.simulated.memory import simulate_memory
from trainer.engines.simulated.step import Simulation
from trainer.recipe import Recipe
from trainer.recipe.machine import Fault, Host, Links, Memory, Noise, Routing, Straggler
from trainer.recipe.rules.examples import FULL

PP2 = {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8}
PP4 = {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 4}
ROOMY = Memory(activations=0.3)
QUIET = Machine(memory=ROOMY, noise=Noise(step=0.0, burst=0.0))


def run(recipe: Recipe, folder: Path, *, number: int = 0, machine: Machine = QUIET) -> Outcome:
    recipe = on_machine(recipe, machine)
    return SimulatedEngine(folder).run(Burst(number=number, recipe=recipe, folder=folder / f"{number:04d}"))


def untraced(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"burst": recipe.burst.model_copy(update={"trace_steps": 0})})


def step_us(recipe: Recipe, machine: Machine = QUIET) -> float:
    return Simulation(recipe, machine).step_us


def traced(recipe: Recipe, folder: Path, machine: Machine = QUIET) -> Partition:
    """Returns the step of the first rank, as the analyzers read it."""
    run(recipe, folder, machine=machine)
    return analyze([folder / "0000"]).traces[0].steps[0]


def test_the_engine_is_found_by_its_name(tmp_path: Path) -> None:
    assert isinstance(open_engine("simulated", tmp_path), SimulatedEngine)


def test_a_burst_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    outcome = run(gpu_recipe(), tmp_path)
    folder = tmp_path / "0000"
    assert outcome.ok
    assert read_burst(folder).recipe == on_machine(gpu_recipe(), QUIET)
    assert json.loads((folder / "outcome.json").read_text())["tokens_per_s_per_gpu"] == outcome.tokens_per_s_per_gpu
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 8
    traces = sorted(p.name for p in (folder / "trace").iterdir())
    assert traces == ["rank0.pt.trace.json.gz", "rank15.pt.trace.json.gz"]
    assert (folder / "log" / "rank0.log").read_text().startswith("simulated: ")


def test_the_same_burst_gives_the_same_outcome_and_a_repeat_differs(tmp_path: Path) -> None:
    machine = Machine(memory=ROOMY)
    first = run(gpu_recipe(), tmp_path / "a", machine=machine)
    assert run(gpu_recipe(), tmp_path / "b", machine=machine) == first
    repeat = run(untraced(gpu_recipe()), tmp_path / "a", number=1, machine=machine)
    assert repeat.step_us != first.step_us
    assert repeat.step_us[0] == pytest.approx(first.step_us[0], rel=0.05)


def test_what_a_burst_costs_is_in_simulated_seconds(tmp_path: Path) -> None:
    outcome = run(gpu_recipe(), tmp_path)
    assert outcome.simulated
    steps = 13 * outcome.step_us[0] / 1e6  # warm-up, measured and traced; loads drift from step to step
    assert outcome.cost_s is not None
    assert outcome.cost_s == pytest.approx(outcome.startup_s + outcome.setup_s + 8.0 + steps, rel=0.02)


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        (FULL, {}),
        ({"expert_model_parallel_size": 16}, {"expert_model_parallel_size": 8}),
        ({}, {"overlap_moe_expert_parallel_comm": True}),
        ({}, {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}),
        ({}, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
        (PP4, PP4 | {"virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True}),
        ({"moe_grouped_gemm": False}, {}),
        ({}, {"micro_batch_size": 4}),
    ],
    ids=["recompute", "EP", "EP overlap", "dispatcher", "DP overlap", "VPP", "grouped GEMM", "micro batch"],
)
def test_a_knob_moves_the_step_as_on_a_cluster(slower: dict[str, object], faster: dict[str, object]) -> None:
    assert step_us(gpu_recipe(faster)) < step_us(gpu_recipe(slower))


def test_gradients_and_parameters_under_overlap_show_less_than_without() -> None:
    base = gpu_recipe({"use_distributed_optimizer": True, "expert_model_parallel_size": 8})
    plain, both = (
        Simulation(base.replace({"overlap_grad_reduce": on, "overlap_param_gather": on}), QUIET).end.ranks[0]
        for on in (False, True)
    )
    assert both.gradients_us < plain.gradients_us == plain.reduce_us
    assert both.parameters_us < plain.parameters_us == plain.gather_us


def test_threads_help_up_to_the_cores() -> None:
    one, two, four = (step_us(cpu_recipe({"threads_per_rank": threads})) for threads in (1, 2, 4))
    assert two < one
    assert four == two


@pytest.mark.parametrize(
    "machine",
    [
        Machine(links=Links(network=0.5)),
        Machine(host=Host(launch=3.0)),
        Machine(host=Host(gc_ms=200.0)),
        Machine(routing=Routing(skew=1.0)),
        Machine(stragglers=(Straggler(node=1, compute=1.3),)),
    ],
    ids=["network", "host", "garbage collection", "skewed router", "slow node"],
)
def test_a_worse_machine_is_slower(machine: Machine) -> None:
    recipe = gpu_recipe({"moe_router_force_load_balancing": False})
    assert step_us(recipe, machine) > 1.005 * step_us(recipe, Machine())


def test_a_slow_rank_slows_the_whole_step_by_what_its_own_compute_does() -> None:
    slow, fast = step_us(gpu_recipe(), Machine(stragglers=(Straggler(rank=3, compute=1.08),))), step_us(gpu_recipe())
    assert 1.03 < slow / fast < 1.08


def test_a_recipe_that_needs_too_much_runs_out_of_memory_in_a_phase(tmp_path: Path) -> None:
    outcome = run(gpu_recipe(), tmp_path, machine=Machine(memory=Memory(outside_gib=79.0)))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.OOM, BurstPhase.INIT)
    assert outcome.cost_s
    assert not (tmp_path / "0000" / "trace").exists()


@pytest.mark.parametrize("more_gib", [1.0, 79.0], ids=["fits", "runs out"])
def test_every_gpu_reports_its_memory_outside_the_allocator(more_gib: float, tmp_path: Path) -> None:
    plain, more = (
        run(untraced(gpu_recipe()), tmp_path, number=number, machine=Machine(memory=Memory(outside_gib=gib)))
        for number, gib in enumerate((0.0, more_gib))
    )
    assert len(more.outside_gib) == more.ranks == 16
    assert more.outside_gib == pytest.approx([gib + more_gib for gib in plain.outside_gib])
    assert more.ok is (more_gib == 1.0)


def test_ranks_on_cpus_report_no_memory_outside_the_allocator(tmp_path: Path) -> None:
    assert run(cpu_recipe(), tmp_path).outside_gib == []


def test_what_does_not_fit_has_no_throughput() -> None:
    tight = Machine(memory=Memory(outside_gib=79.0))
    assert true_throughput(gpu_recipe(), tight) is None
    assert true_throughput(gpu_recipe(), QUIET) == pytest.approx(256 * 4096 / 16 / (step_us(gpu_recipe()) / 1e6))


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("dies", FailureKind.CRASH),
        ("hangs", FailureKind.HANG),
        ("nan", FailureKind.NAN),
        ("node_lost", FailureKind.INFRASTRUCTURE),
    ],
)
def test_a_fault_ends_the_burst_as_what_it_is(kind: Any, failure: FailureKind, tmp_path: Path) -> None:
    machine = Machine(memory=ROOMY, faults=(Fault(kind=kind, rank=5, step=2, bursts=1),))
    outcome = run(gpu_recipe(), tmp_path, machine=machine)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.rank) == (failure, 5)
    assert outcome.cost_s
    assert run(untraced(gpu_recipe()), tmp_path, number=1, machine=machine).ok


def test_a_repeat_of_a_lost_burst_draws_its_fault_again(tmp_path: Path) -> None:
    machine = Machine(memory=ROOMY, faults=(Fault(kind="node_lost", step=2, chance=0.5),))
    recipe = on_machine(untraced(gpu_recipe()), machine)
    kinds = set()
    for number in range(12):
        burst = Burst(number=number, recipe=recipe, folder=tmp_path / f"{number:04d}")
        first, second = (SimulatedEngine(tmp_path).run(burst).ok for _ in range(2))
        kinds.add((first, second))
    assert (False, True) in kinds


def test_memory_is_that_of_the_hottest_rank_and_not_of_the_hottest_layer() -> None:
    """Loads differ from layer to layer: no rank is the hottest in all of them."""
    recipe = gpu_recipe({"moe_router_force_load_balancing": False})
    simulation = Simulation(recipe, Machine(routing=Routing(skew=0.5)))
    peak = max(memory_of(simulation).peak_gib)
    even = max(memory_of(Simulation(recipe, Machine(routing=Routing(skew=0.0)))).peak_gib)
    hottest = max(simulate_memory(recipe, Machine(), imbalance=float(simulation.routing.hottest.max())).peak_gib)
    assert even < peak < 0.9 * hottest


def test_every_kernel_has_a_launch_and_a_known_name(tmp_path: Path) -> None:
    run(gpu_recipe(FULL | PP2), tmp_path)
    trace = tmp_path / "0000" / "trace" / "rank0.pt.trace.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    launched = [e["args"]["correlation"] for e in events if e["name"] == "cudaLaunchKernel"]
    ran = [e["args"]["correlation"] for e in events if e["cat"] == "kernel"]
    assert sorted(launched) == sorted(ran)
    assert len(set(ran)) == len(ran)
    report = analyze([tmp_path / "0000"]).traces[0]
    assert report.coverage.device_time_classified == 1.0
    assert report.coverage.kernels_unknown == []


CASES: dict[str, dict[str, Any]] = {
    "flat": {},
    "pipeline": PP4,
    "recompute": FULL,
    "interleaved": PP4 | {"virtual_pipeline_model_parallel_size": 3, "overlap_p2p_comm": True},
    "EP overlap": {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True},
    "DP overlap": {"overlap_grad_reduce": True, "overlap_param_gather": True, "use_distributed_optimizer": True},
}


@pytest.mark.parametrize("name", few(CASES, 2))
def test_a_trace_adds_up_to_the_step_it_is_a_part_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled by what repeats, it is the partition of the whole step, and as long as the steps that were measured."""
    recipe = gpu_recipe(CASES[name] | {"global_batch_size": 128})
    part = traced(recipe, tmp_path / "part")
    assert part.duration_us == pytest.approx(step_us(recipe), rel=0.002)
    monkeypatch.setattr("trainer.engines.simulated.pipeline.shortened", lambda schedule: schedule)
    whole = traced(recipe, tmp_path / "whole")
    assert whole.duration_us == pytest.approx(part.duration_us, rel=0.005)
    for part_us in ("compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us"):
        assert getattr(part, part_us) == pytest.approx(getattr(whole, part_us), abs=0.02 * whole.duration_us), part_us
    sizes = [p.stat().st_size for p in (tmp_path / "part" / "0000" / "trace").iterdir()]
    assert max(sizes) < 5e6


def test_each_communication_is_read_as_its_kind(tmp_path: Path) -> None:
    tp2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1}
    kinds = traced(gpu_recipe(tp2 | PP2 | {"context_parallel_size": 2}), tmp_path).communication_by_kind
    assert {"ep_dispatch", "ep_combine", "tp", "cp", "pp", "dp"} <= set(kinds)


def test_recompute_is_read_as_recompute(tmp_path: Path) -> None:
    step = traced(gpu_recipe(FULL), tmp_path)
    assert 0.15 < step.recompute_us / step.duration_us < 0.4


def test_a_slow_host_leaves_the_device_idle(tmp_path: Path) -> None:
    step = traced(gpu_recipe(), tmp_path, Machine(host=Host(launch=20.0), memory=ROOMY))
    assert step.idle_by_cause.host_us > 0.3 * step.duration_us


def test_ranks_wait_for_a_late_one_and_the_late_one_for_nobody(tmp_path: Path) -> None:
    machine = Machine(memory=ROOMY, stragglers=(Straggler(rank=3, compute=1.3),), routing=Routing(skew=0.0))
    run(gpu_recipe(), tmp_path, machine=machine)
    analysis = analyze([tmp_path / "0000"])
    assert [report.rank for report in analysis.traces] == [0, 3, 15]
    first, late, _ = (report.steps[0] for report in analysis.traces)
    assert late.compute_us > 1.2 * first.compute_us
    assert late.exposed_communication_us < 0.8 * first.exposed_communication_us
    assert late.duration_us == pytest.approx(first.duration_us, rel=0.01)


def test_a_cluster_of_16384_gpus_writes_two_traces(tmp_path: Path) -> None:
    recipe = gpu_recipe()
    large = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"nodes": 2048})})
    large = large.replace({"global_batch_size": 16384})
    outcome = run(large, tmp_path)
    assert outcome.ranks == len(outcome.peak_gib) == 16384
    assert len(list((tmp_path / "0000" / "trace").iterdir())) == 2


def test_a_wall_that_is_planted_is_named(tmp_path: Path) -> None:
    slow_network = Machine(links=Links(network=0.2), memory=ROOMY)
    slow_host = Machine(host=Host(launch=15.0), memory=ROOMY)
    for machine, wall in ((slow_network, Wall.COMMUNICATION), (slow_host, Wall.HOST)):
        run(gpu_recipe(), tmp_path / wall, machine=machine)
        assert analyze([tmp_path / wall / "0000"]).diagnosis.wall is wall
