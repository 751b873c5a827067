"""Checks the findings and the verdict of an average step: what each wall counts, and when no wall is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from analyzers.diagnosis import Diagnosis, Wall, WallFinding
from analyzers.one_rank.rank_step import RankStep
from analyzers.outcome import Failure, RunOutcome
from analyzers.ranks.job import Job
from analyzers.ranks.stragglers import Place, Straggler
from analyzers.verdict import THRESHOLDS, conclude
from analyzers.walls import find_walls, walls

STEP: dict[str, Any] = {"duration_us": 140_000.0, "compute_us": 90_000.0}


def _judge(outcome: RunOutcome | None = None, classified: float = 1.0, **step: Any) -> Diagnosis:
    job = Job(
        step=RankStep(**{**STEP, **step}),
        steps=3,
        classified=classified,
        outcome=outcome or RunOutcome(),
    )
    return conclude(job, find_walls(job))


def _finding(diagnosis: Diagnosis, wall: Wall) -> WallFinding:
    found = diagnosis.finding(wall)
    assert found is not None
    return found


def test_every_wall_is_found_in_its_folder_and_is_documented() -> None:
    assert {module.KIND.wall for module in walls()} == set(Wall) - {Wall.UNDETERMINED}
    for module in walls():
        for part in ("What it is.", "How it shows.", "What it costs.", "When it does not apply.", "Source."):
            assert part in (module.__doc__ or "")


def test_exposed_combine_is_named_with_its_figures_and_hidden_dispatch_as_hidden() -> None:
    diagnosis = _judge(
        communication_by_kind={"ep_combine": 25_000.0, "ep_dispatch": 12_000.0},
        exposed_by_kind={"ep_combine": 21_000.0, "ep_dispatch": 300.0},
        host_us=5_000.0,
    )
    finding = _finding(diagnosis, Wall.COMMUNICATION)
    assert diagnosis.wall is Wall.COMMUNICATION
    assert finding.parts == {"ep_combine": 21_000.0, "ep_dispatch": 300.0}
    assert (
        "EP combine is exposed for 21 of 140 ms per step (15 %): hiding it recovers at most 15 %"
        in (finding.evidence[0])
    )
    assert "EP dispatch is hidden: 12 of its 12 ms run under compute" in finding.evidence[1]


def test_waiting_for_a_slower_rank_is_not_counted_as_communication() -> None:
    finding = _finding(
        _judge(
            communication_by_kind={"ep_combine": 21_000.0},
            exposed_by_kind={"ep_combine": 21_000.0},
            waiting_by_kind={"ep_combine": 15_000.0},
        ),
        Wall.COMMUNICATION,
    )
    assert finding.recoverable_us == 6_000.0


def test_recompute_with_its_host_time_is_memory() -> None:
    diagnosis = _judge(recompute_us=30_000.0, recompute_host_us=4_000.0, host_us=9_000.0)
    assert diagnosis.wall is Wall.MEMORY
    assert _finding(diagnosis, Wall.MEMORY).parts == {"recompute": 34_000.0}


def test_recompute_says_what_of_it_the_steps_table_shows_elsewhere() -> None:
    diagnosis = _judge(recompute_us=30_000.0, recompute_host_us=4_000.0, compute_by_class={"recompute": 20_000.0})
    said = _finding(diagnosis, Wall.MEMORY).evidence[0]
    assert said.endswith("10 ms of it in communication that it repeats, 4.0 ms of it on the host")


def test_copies_both_ways_are_offload_and_one_way_are_not() -> None:
    both = _finding(_judge(to_host_us=9_000.0, from_host_us=8_000.0), Wall.MEMORY)
    one = _finding(_judge(to_host_us=10.0, from_host_us=8_000.0), Wall.MEMORY)
    assert both.parts == {"offload_copies": 17_000.0}
    assert one.parts == {}
    assert "not offload" in one.evidence[0]


def test_offload_is_distinguished_from_input_by_all_copies_also_where_one_direction_is_hidden() -> None:
    step: dict[str, Any] = {"to_host_us": 0.0, "from_host_us": 8_000.0, "copied_from_host_us": 8_000.0}
    assert _finding(_judge(**step, copied_to_host_us=8_500.0), Wall.MEMORY).parts == {"offload_copies": 8_000.0}
    assert _finding(_judge(**step, copied_to_host_us=500.0), Wall.MEMORY).parts == {}


def test_allocator_stalls_are_memory() -> None:
    assert _finding(_judge(allocator_us=20_000.0), Wall.MEMORY).parts == {"allocator": 20_000.0}


def test_idle_time_in_the_allocator_is_memorys_and_not_the_hosts_as_well() -> None:
    diagnosis = _judge(
        host_us=25_000.0, host_by_activity={"allocator": 20_000.0, "python": 5_000.0}, allocator_us=20_000.0
    )
    host = _finding(diagnosis, Wall.HOST)
    assert (diagnosis.wall, host.recoverable_us, host.parts) == (Wall.MEMORY, 5_000.0, {"python": 5_000.0})


def test_the_peak_of_the_hottest_rank_is_evidence() -> None:
    outcome = RunOutcome(peak_gib=[1.5, 1.9], limit_gib=2.0)
    assert "rank 1 peaks at 1.90 of 2.00 GiB (95 %)" in _finding(_judge(outcome), Wall.MEMORY).evidence


def test_compute_counts_only_what_is_beyond_the_attainable_rate() -> None:
    outcome = RunOutcome(model_tflops_per_gpu=300.0, attainable_tflops_per_gpu=600.0)
    finding = _finding(_judge(outcome, compute_by_class={"gemm": 80_000.0, "recompute": 10_000.0}), Wall.COMPUTE)
    assert finding.recoverable_us == 90_000.0 - 10_000.0 - 70_000.0


def test_without_a_rate_compute_counts_what_shows_and_says_what_is_not_known() -> None:
    finding = _finding(
        _judge(
            compute_by_class={"gemm": 60_000.0, "elementwise": 30_000.0},
            short_kernels_by_class={"gemm": 2_000.0, "elementwise": 9_000.0},
        ),
        Wall.COMPUTE,
    )
    assert finding.parts == {"memory_bound": 30_000.0, "short_kernels": 2_000.0}
    assert "memory-bound kernels take 30 of 140 ms per step (21 %): elementwise 30 ms" in finding.evidence
    assert "not known" in finding.evidence[-1]


def test_expert_gemms_are_recognised_by_number_and_time_and_the_others_by_format() -> None:
    finding = _finding(
        _judge(
            compute_by_class={"gemm": 40_000.0, "grouped_gemm": 48_000.0},
            grouped_gemms=1_200.0,
            grouped_gemm_us=38.2,
            gemm_by_precision={"bf16": 30_000.0, "fp8": 10_000.0},
        ),
        Wall.COMPUTE,
    )
    assert finding.evidence[-2:] == [
        "experts: 1,200 grouped GEMM kernels per step of 38.2 µs (median), 48 of 140 ms per step (34 %)",
        "other GEMMs by format: bf16 30 ms, fp8 10 ms",
    ]


def test_kernels_that_the_host_could_not_follow_are_counted_by_what_comes_back() -> None:
    finding = _finding(
        _judge(compute_by_class={"elementwise": 30_000.0}, gain_us={Wall.COMPUTE: 12_000.0}), Wall.COMPUTE
    )
    assert (finding.recoverable_us, finding.parts) == (12_000.0, {"memory_bound": 12_000.0})
    assert any("the host is not far enough ahead" in line and "12 ms" in line for line in finding.evidence)


def test_a_step_that_is_all_compute_has_the_compute_wall_whatever_its_rate() -> None:
    diagnosis = _judge(compute_us=137_000.0, compute_by_class={"gemm": 137_000.0}, host_us=3_000.0)
    assert diagnosis.wall is Wall.COMPUTE
    assert diagnosis.walls[0].recoverable_us == 0


@pytest.mark.parametrize(
    ("step", "because"),
    [
        ({"host_us": 20_000.0, "classified": 0.5}, "in known kernels"),
        ({"host_us": 20_000.0, "unattributed_us": 30_000.0}, "cause that is not in the trace"),
        ({"host_us": 4_000.0}, "no wall has more to recover than 3 %"),
        ({"host_us": 20_000.0, "bubble_us": 30_000.0}, "the pipeline's bubble takes 21 %"),
        ({"bubble_us": 30_000.0, "compute_us": 110_000.0}, "the pipeline's bubble takes 21 %"),
        ({"host_us": 28_000.0, "bubble_us": 27_000.0}, "takes 19 % of the step, nearly as much as host (20 %)"),
        ({"host_us": 20_000.0, "sync_us": 30_000.0}, "waits for another stream, a copy or an event takes 21 %"),
        (
            {"host_us": 5_000.0, "from_host_us": 16_000.0, "compute_us": 115_000.0},
            "copying input or weights under no compute takes 11 %",
        ),
        (
            {"host_us": 20_000.0, "recompute_us": 19_000.0},
            "host leads by only 0.7 % of the step: 14 %, and memory 14 %",
        ),
    ],
)
def test_thin_evidence_names_no_wall_and_says_why(step: Mapping[str, Any], because: str) -> None:
    diagnosis = _judge(**step)
    assert diagnosis.wall is Wall.UNDETERMINED
    assert because in diagnosis.because
    assert diagnosis.walls


@pytest.mark.parametrize(("part", "wall"), [("host:python", Wall.HOST), ("experts", Wall.UNDETERMINED)])
def test_waiting_for_a_rank_that_the_leading_wall_holds_up_is_no_other_loss(part: str, wall: Wall) -> None:
    late = Straggler(place=Place(rank=1), kind="ep_dispatch", late_us=28_000.0, in_every_step=True, part=part)
    job = Job(step=RankStep(**STEP, host_us=28_000.0), steps=3, imbalance_us=28_500.0, late=late)
    assert conclude(job, find_walls(job)).wall is wall


def test_the_margin_is_the_leaders_share_over_the_next_ones() -> None:
    diagnosis = _judge(host_us=28_000.0, recompute_us=14_000.0)
    assert diagnosis.margin == pytest.approx(0.10)
    assert diagnosis.margin > THRESHOLDS["margin"]


def test_a_run_out_of_memory_is_the_memory_wall_without_any_trace() -> None:
    failure = Failure(kind="oom", phase="backward", rank=1, evidence="can't allocate memory: 64 MiB")
    job = Job(outcome=RunOutcome(failure=failure, peak_gib=[1.1, 1.9], limit_gib=2.0))
    diagnosis = conclude(job, find_walls(job))
    assert (diagnosis.wall, diagnosis.margin) == (Wall.MEMORY, 1.0)
    assert diagnosis.because == "rank 1 ran out of memory in backward: can't allocate memory: 64 MiB"
    assert _finding(diagnosis, Wall.MEMORY).share == 1.0


def test_another_failure_without_traces_names_no_wall() -> None:
    job = Job(outcome=RunOutcome(failure=Failure(kind="hang", phase="forward", rank=0, evidence="no step in 60 s")))
    diagnosis = conclude(job, find_walls(job))
    assert diagnosis.wall is Wall.UNDETERMINED
    assert "hang in forward" in diagnosis.because


def test_the_hosts_largest_part_is_said_first_and_the_launch_rate_with_its_figures() -> None:
    loading = _finding(_judge(host_us=30_000.0, host_by_activity={"data_loading": 20_000.0}), Wall.HOST)
    assert loading.evidence[0].endswith("30 of 140 ms per step (21 %), mostly loading data (20 ms)")
    rate: dict[str, Any] = {
        "launch_rate_us": 25_000.0,
        "launches": 1240.0,
        "launch_interval_us": 14.2,
        "kernel_us": 2.1,
    }
    launching = _finding(_judge(host_us=30_000.0, host_by_activity={"python": 30_000.0}, **rate), Wall.HOST)
    assert "mostly launching one after the other, every 14.2 µs (25 ms)" in launching.evidence[0]
    assert any(
        "1,240 launches per step, one every 14.2 µs, of kernels that run 2.1 µs" in e for e in launching.evidence
    )


def _job(*others: RankStep, late: Straggler | None = None, world_size: int | None = None, **step: Any) -> Job:
    slowest = RankStep(**{**STEP, **step})
    ranks = dict(enumerate((slowest, *others)))
    return Job(step=slowest, steps=3, by_rank=ranks, late=late, world_size=world_size)


def test_a_step_gains_only_until_another_rank_is_the_slowest() -> None:
    other = RankStep(**STEP, host_us=10_000.0, exposed_by_kind={"pp": 12_000.0}, waiting_by_kind={"pp": 12_000.0})
    finding = _finding(_conclude(_job(other, host_us=40_000.0)), Wall.HOST)
    assert finding.recoverable_us == 22_000.0  # without hosts the other rank still takes 118 of 140 ms
    assert any("then another rank is the slowest" in line for line in finding.evidence)


def test_another_rank_that_perhaps_only_waited_holds_up_no_gain() -> None:
    other = RankStep(**STEP, exposed_by_kind={"ep_combine": 40_000.0}, may_wait_by_kind={"ep_combine": 40_000.0})
    assert _finding(_conclude(_job(other, host_us=40_000.0)), Wall.HOST).recoverable_us == 40_000.0


def test_a_wall_of_the_slowest_stage_alone_is_not_named_where_a_stage_that_is_not_traced_may_be_as_slow() -> None:
    waits: dict[str, Any] = {"exposed_by_kind": {"pp": 70_000.0}, "waiting_by_kind": {"pp": 70_000.0}}
    first = RankStep(duration_us=140_000.0, compute_us=40_000.0, host_us=10_000.0, recompute_us=2_000.0, **waits)
    slowest: dict[str, Any] = {"host_us": 10_000.0, "recompute_us": 30_000.0, "compute_us": 100_000.0}
    assert _conclude(_job(first, world_size=2, **slowest)).wall is Wall.MEMORY
    unsure = _conclude(_job(first, world_size=64, **slowest))
    assert (unsure.wall, _finding(unsure, Wall.MEMORY).least_us) == (Wall.UNDETERMINED, 4_000.0)
    assert "memory leads on the slowest stage, with 21 % of the step" in unsure.because
    late = Straggler(place=Place(), kind="ep_combine", late_us=30_000.0, in_every_step=True, part=None)
    assert (
        _conclude(replace(_job(first, world_size=64, **slowest), late=late, slowest_place=Place())).wall is Wall.MEMORY
    )


def test_a_wall_is_not_named_where_idle_time_of_no_shown_cause_could_make_the_host_the_larger() -> None:
    assert _judge(recompute_us=28_000.0, host_us=20_000.0, sync_us=7_000.0).wall is Wall.MEMORY
    diagnosis = _judge(recompute_us=28_000.0, host_us=20_000.0, sync_us=9_000.0)
    assert diagnosis.wall is Wall.UNDETERMINED
    assert "6 % of idle time with work already launched may add to the host's 14 %" in diagnosis.because


def test_communication_that_may_be_waiting_gives_way_to_a_wall_as_large() -> None:
    exchange: dict[str, Any] = {"communication_by_kind": {"ep_combine": 30_000.0}}
    exchange["exposed_by_kind"] = exchange["communication_by_kind"]
    diagnosis = _judge(recompute_us=29_000.0, **exchange, may_wait_by_kind={"ep_combine": 10_000.0})
    assert (diagnosis.wall, diagnosis.margin) == (Wall.MEMORY, 0.0)
    assert _judge(recompute_us=29_000.0, **exchange).wall is Wall.UNDETERMINED


def test_walls_in_the_passes_take_their_part_of_the_bubble_with_them() -> None:
    diagnosis = _judge(
        recompute_us=28_000.0, host_us=28_500.0, host_in_passes_us=0.0, bubble_us=20_000.0, passes_us=100_000.0
    )
    assert diagnosis.wall is Wall.MEMORY
    assert _finding(diagnosis, Wall.MEMORY).bubble_us == pytest.approx(5_600.0)
    assert _finding(diagnosis, Wall.HOST).bubble_us == 0.0


def _conclude(job: Job) -> Diagnosis:
    return conclude(job, find_walls(job))
