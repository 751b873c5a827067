"""Checks the causes of idle devices: a drawn timeline for every cause, and for every trap that looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers.diagnosis import Partition
from analyzers.one_rank.breakdown import break_down
from analyzers.one_rank.gaps import LAUNCH_LATENCY_US
from analyzers.readers import read
from tests.analyzers.drawing import BACKWARD, GEMM, MAIN, Drawing
from tests.analyzers.taken_apart import breakdown_of, step_of

WATCHDOG = 300
GRAPH = "cudaGraphLaunch"


def _causes(step: Partition) -> dict[str, float]:
    causes = step.idle_by_cause
    named = {
        "host": causes.host_us,
        "sync": causes.sync_us,
        "bubble": causes.bubble_us,
        "unattributed": causes.unattributed_us,
    }
    return {cause: us for cause, us in named.items() if us}


def _gap(launched: float | None, *, until: float = 1000, took: float = 2) -> Drawing:
    """Draws a step of 1100 us whose device is idle from 100 us until a kernel that was launched at `launched`."""
    drawing = Drawing().step(1, 0, until + 100).kernel(GEMM, 0, 100, launched=0)
    return drawing.kernel(GEMM, until, until + 100, launched=launched, launch_took=took)


def test_a_late_launch_and_then_a_wait_are_two_causes_of_one_gap(tmp_path: Path) -> None:
    step = step_of(_gap(300, took=20), tmp_path)
    host = 320 + LAUNCH_LATENCY_US - 100
    assert _causes(step) == {"host": host, "sync": 900 - host}


def test_the_latency_of_a_launch_is_the_hosts(tmp_path: Path) -> None:
    assert _causes(step_of(_gap(990, took=4), tmp_path)) == {"host": 900}


def test_a_launch_that_is_still_in_progress_when_the_device_runs_dry_is_late(tmp_path: Path) -> None:
    assert _causes(step_of(_gap(90, took=905), tmp_path)) == {"host": 900}


def test_a_launch_that_came_back_in_time_leaves_a_wait(tmp_path: Path) -> None:
    assert _causes(step_of(_gap(90, took=5), tmp_path)) == {"sync": 900}


def test_a_kernel_that_starts_before_its_launch_by_the_clocks_is_still_late(tmp_path: Path) -> None:
    assert _causes(step_of(_gap(1003), tmp_path)) == {"host": 900}


def test_of_kernels_that_start_together_the_one_launched_first_counts(tmp_path: Path) -> None:
    drawing = _gap(990).kernel(GEMM, 1000, 1050, launched=50, stream=8)
    assert _causes(step_of(drawing, tmp_path)) == {"sync": 900}


def test_another_stream_that_runs_leaves_no_gap(tmp_path: Path) -> None:
    drawing = _gap(990).kernel(GEMM, 50, 1000, launched=40, stream=8)
    assert _causes(step_of(drawing, tmp_path)) == {}


def test_a_stream_that_waits_for_an_event_of_a_late_one_blames_the_late_launch(tmp_path: Path) -> None:
    drawing = _gap(990).call("cudaStreamWaitEvent", 40, 45).kernel(GEMM, 1050, 1100, launched=46, stream=8)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 900}


def test_the_start_of_a_step_before_its_first_launch_is_the_hosts(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 60, 100, launched=50)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 60}


def test_work_launched_before_the_recording_began_accuses_nobody(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 40, 60).kernel(GEMM, 80, 100, launched=78)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 20, "unattributed": 40}


def test_without_any_recorded_call_nothing_is_the_hosts(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(GEMM, 20, 40).kernel(GEMM, 60, 80)
    assert _causes(step_of(drawing, tmp_path)) == {"unattributed": 60}


def _graph(launched: float, *, starts: tuple[float, ...]) -> Drawing:
    drawing = Drawing().step(1, 0, 1000).kernel(GEMM, 0, 100, launched=0)
    return drawing.graph([(GEMM, start, start + 50) for start in starts], launched=launched, took=30)


def test_a_graph_is_late_when_its_launch_was(tmp_path: Path) -> None:
    step = step_of(_graph(300, starts=(335, 600, 950)), tmp_path)
    assert _causes(step) == {"host": 235, "sync": 215 + 300}


def test_gaps_inside_a_graph_are_never_the_hosts_even_while_its_launch_is_in_progress(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 1000).kernel(GEMM, 0, 100, launched=0)
    drawing.graph([(GEMM, 100, 200), (GEMM, 400, 500), (GEMM, 700, 1000)], launched=90, took=900)
    assert _causes(step_of(drawing, tmp_path)) == {"sync": 400}


def test_gaps_inside_a_hip_graph_are_not_the_hosts(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 1000).kernel(GEMM, 0, 100, launched=0)
    drawing.graph([(GEMM, 110, 200), (GEMM, 400, 1000)], launched=50, name="hipGraphLaunch")
    assert _causes(step_of(drawing, tmp_path)) == {"sync": 210}


@pytest.mark.parametrize("launched", [5, 300])
def test_idle_time_in_which_an_unrecorded_graph_may_have_run_is_unattributed(tmp_path: Path, launched: float) -> None:
    drawing = _gap(990).call(GRAPH, launched, launched + 5, correlation=77)
    lost_from = max(100, launched)
    host = {"host": lost_from - 100} if lost_from > 100 else {}
    breakdown = breakdown_of(drawing, tmp_path)
    assert _causes(breakdown.steps[0]) == {**host, "unattributed": 1000 - lost_from}
    assert any("are missing from the trace" in warning for warning in breakdown.report().warnings)


def test_a_driver_call_inside_the_runtime_call_it_serves_is_no_lost_launch(tmp_path: Path) -> None:
    drawing = _gap(990, took=10).call("cuLaunchKernel", 992, 998, correlation=77)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 900}


def test_runtime_and_driver_calls_with_one_correlation_are_one_launch(tmp_path: Path) -> None:
    drawing = _gap(50, took=900)
    drawing.call("cuLaunchKernel", 52, 940, correlation=2)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 860, "sync": 40}


def test_a_correlation_of_zero_joins_nothing(tmp_path: Path) -> None:
    drawing = _gap(None).call("cudaEventRecord", 900, 905).call("cudaGetLastError", 910, 911)
    drawing.events[3]["args"]["correlation"] = 0
    assert _causes(step_of(drawing, tmp_path)) == {"unattributed": 900}


def test_launches_of_another_device_say_nothing_of_this_one(tmp_path: Path) -> None:
    drawing = _gap(990).kernel(GEMM, 200, 800, launched=150, device=1)
    one, other = (break_down(timeline).steps[0] for timeline in read(drawing.write(tmp_path)))
    assert _causes(one) == {"host": 900}
    assert other.compute_us == 600


def test_the_profilers_own_work_is_not_the_hosts(tmp_path: Path) -> None:
    drawing = _gap(990).overhead("Buffer Flush", 200, 700)
    breakdown = breakdown_of(drawing, tmp_path)
    assert _causes(breakdown.steps[0]) == {"host": 400, "unattributed": 500}
    assert any("profiler" in warning for warning in breakdown.report().warnings)


@pytest.mark.parametrize(
    "name",
    [
        "pp_send_recv",
        "megatron.core.pipeline_parallel.p2p_communication.P2PCommunicator.recv_forward",
        "recv_backward",
        "send_forward_recv_backward",
        "PP:1RECV_F3",
    ],
)
def test_blocking_while_exchanging_with_a_pipeline_peer_is_a_bubble(tmp_path: Path, name: str) -> None:
    drawing = _gap(990).range(name, 50, 950).call("cudaStreamSynchronize", 80, 900)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 100, "bubble": 800}


def test_a_pending_gloo_receive_is_a_bubble_on_a_gpu_too(tmp_path: Path) -> None:
    drawing = _gap(990).range("gloo:recv 0<-1", 50, 900, thread=WATCHDOG)
    assert _causes(step_of(drawing, tmp_path)) == {"host": 100, "bubble": 800}


def test_python_within_a_pipeline_range_is_not_waiting(tmp_path: Path) -> None:
    assert _causes(step_of(_gap(990).range("pp_send_recv", 50, 950), tmp_path)) == {"host": 900}


@pytest.mark.parametrize(
    ("name", "category", "activity"),
    [
        ("gc", "user_annotation", "garbage_collection"),
        ("Python GC", "python_function", "garbage_collection"),
        ("<built-in function collect>", "python_function", "garbage_collection"),
        ("cudaMalloc", "cuda_runtime", "allocator"),
        ("cudaFree", "cuda_runtime", "allocator"),
        ("cudaHostAlloc", "cuda_runtime", "allocator"),
        ("hipMalloc", "cuda_runtime", "allocator"),
        ("cuMemMap", "cuda_driver", "allocator"),
        ("cuModuleLoadData", "cuda_driver", "module_loading"),
        ("cuLibraryLoadData", "cuda_driver", "module_loading"),
        ("Lazy Function Loading", "overhead", "module_loading"),
        ("cudaDeviceSynchronize", "cuda_runtime", "synchronising_call"),
        ("cudaMemcpy", "cuda_runtime", "synchronising_call"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", "data_loading"),
        ("get_batch", "user_annotation", "data_loading"),
        ("compile_fx_inner (dynamo_timed)", "cpu_op", "compiling"),
        ("aten::mm", "cpu_op", "operators"),
        ("cudaStreamIsCapturing", "cuda_runtime", "launching"),
        ("my_function.py(3): forward", "python_function", "python"),
    ],
)
def test_host_idle_time_is_named_by_what_the_host_was_doing(
    tmp_path: Path, name: str, category: str, activity: str
) -> None:
    drawing = _gap(970, took=30).operator("aten::view", 0, 1).event(category, name, 200, 700)
    activities = step_of(drawing, tmp_path).host_by_activity
    launching = 30 + (500 if activity == "launching" else 0)
    python = 370 + (500 if activity == "python" else 0)
    expected = {"launching": launching, "python": python}
    assert activities == {activity: 500, **expected} if activity not in expected else activities == expected


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaEventSynchronize", "cuda_runtime"),
        ("cudaEventQuery", "cuda_runtime"),
        ("cudaHostAlloc", "cuda_runtime"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation"),
        ("aten::stack", "cpu_op"),
    ],
)
def test_no_gap_is_attributed_to_threads_that_launch_nothing(tmp_path: Path, name: str, category: str) -> None:
    drawing = _gap(970, took=30).operator("aten::view", 0, 1).event(category, name, 50, 950, thread=WATCHDOG)
    breakdown = breakdown_of(drawing, tmp_path)
    assert breakdown.steps[0].host_by_activity == {"launching": 30, "python": 870}
    assert not len(breakdown.idle.after_sync)


def test_garbage_collected_on_any_thread_stops_those_that_launch(tmp_path: Path) -> None:
    drawing = _gap(970, took=30).range("gc", 200, 700, thread=WATCHDOG)
    assert step_of(drawing, tmp_path).host_by_activity["garbage_collection"] == 500


def test_every_thread_that_launches_is_asked(tmp_path: Path) -> None:
    drawing = _gap(970, took=30).kernel(GEMM, 0, 50, launched=10, stream=8, thread=BACKWARD)
    drawing.operator("aten::mm", 200, 700, thread=BACKWARD).operator("aten::view", 0, 1)
    assert step_of(drawing, tmp_path).host_by_activity["operators"] == 500


def test_threads_numbered_differently_for_calls_and_operators_are_all_asked(tmp_path: Path) -> None:
    drawing = _gap(970, took=30).operator("aten::mm", 200, 700, thread=9).range("get_batch", 700, 800, thread=9)
    activities = step_of(drawing, tmp_path).host_by_activity
    assert (activities["operators"], activities["data_loading"]) == (500, 100)


def test_a_first_launch_that_takes_very_long_loads_its_module(tmp_path: Path) -> None:
    drawing = _gap(200, took=795).kernel("void cutlass::Kernel<x>", 1050, 1100, launched=996)
    drawing.events[4]["name"] = "another_kernel"
    assert step_of(drawing, tmp_path).host_by_activity["module_loading"] == 795


def test_a_second_launch_that_takes_very_long_stays_launching(tmp_path: Path) -> None:
    activities = step_of(_gap(200, took=795), tmp_path).host_by_activity
    assert "module_loading" not in activities


def test_what_a_synchronising_call_makes_visible_is_reported(tmp_path: Path) -> None:
    breakdown = breakdown_of(_gap(990).call("cudaStreamSynchronize", 50, 105), tmp_path)
    assert breakdown.measure(breakdown.idle.after_sync) == [900]


def test_a_stall_after_a_synchronising_call_has_its_own_name(tmp_path: Path) -> None:
    drawing = _gap(990).call("cudaStreamSynchronize", 50, 105).range("get_batch", 110, 510)
    breakdown = breakdown_of(drawing, tmp_path)
    assert breakdown.measure(breakdown.after_sync) == [900 - 5 - 400]


def test_a_copy_that_came_back_only_when_it_was_done_synchronises(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 1000).kernel(GEMM, 0, 100, launched=0)
    drawing.copy("Memcpy DtoH (Device -> Pageable)", 100, 200, launched=10, launch_took=195)
    drawing.kernel(GEMM, 900, 1000, launched=890)
    breakdown = breakdown_of(drawing, tmp_path)
    assert breakdown.measure(breakdown.idle.after_sync) == [700]
    assert breakdown.steps[0].host_by_activity["synchronising_call"] == 5


def _launches(*, every: float, runs: float, count: int = 20) -> Drawing:
    drawing = Drawing().step(1, 0, every * count)
    for k in range(count):
        drawing.kernel(GEMM, k * every + 5, k * every + 5 + runs, launched=k * every)
    return drawing


def test_short_kernels_launched_one_by_one_are_bound_by_the_launch_rate(tmp_path: Path) -> None:
    breakdown = breakdown_of(_launches(every=20, runs=4), tmp_path)
    step = breakdown.steps[0]
    assert step.idle_by_cause.host_us == 20 * 16
    assert step.launch_rate_us == 19 * 16
    assert (breakdown.pace.interval_us, breakdown.pace.kernel_us) == (20, 4)


def test_a_stall_between_two_launches_is_not_their_rate(tmp_path: Path) -> None:
    drawing = _launches(every=20, runs=4)
    drawing.step(2, 400, 2000).kernel(GEMM, 1990, 2000, launched=1985)
    first, second = breakdown_of(drawing, tmp_path).steps
    assert (first.launch_rate_us, second.launch_rate_us) == (19 * 16, 0)


def test_collecting_garbage_between_two_launches_is_not_their_rate(tmp_path: Path) -> None:
    drawing = _launches(every=20, runs=4).range("gc", 90, 98, thread=MAIN)
    assert breakdown_of(drawing, tmp_path).steps[0].launch_rate_us == 19 * 16 - 8


def test_the_devices_turn_from_one_queued_kernel_to_the_next_is_no_wait(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 300)
    for k, start in enumerate((0, 102, 250)):
        drawing.kernel(GEMM, start, (100, 200, 300)[k], launched=-10)
    step = step_of(drawing, tmp_path)
    assert (step.idle_by_cause.sync_us, step.turnaround_us) == (52, 2)
