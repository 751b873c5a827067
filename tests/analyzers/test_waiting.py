"""Waiting for other ranks separated from transferring: on any clocks, with any ranks missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import Wall, analyze
from analyzers.diagnosis import Analysis, RankTime, WallFinding
from tests.analyzers.drawing import ALL_TO_ALL, DISPATCH, GEMM, GLOO_THREAD, Drawing
from tests.analyzers.drawn_jobs import COMBINE, EXPERTS, DrawnJob, nccl, uneven

PAIR = DrawnJob(compute_us=uneven(2, slow={1: 1.5}), groups=[(0, 1)])
SECONDS_APART = {0: (0.0, 0.0), 1: (1e7, 5e-5), 2: (-1e7, -5e-5), 3: (3e6, 5e-5)}


def _waiting(analysis: Analysis) -> list[float]:
    return [rank.waiting_us for rank in analysis.ranks]


def _communication(analysis: Analysis) -> WallFinding:
    found = analysis.diagnosis.finding(Wall.COMMUNICATION)
    assert found is not None
    return found


def _said(analysis: Analysis, words: str) -> bool:
    return any(words in line for line in _communication(analysis).evidence)


def test_the_last_to_arrive_transfers_and_the_others_wait(tmp_path: Path) -> None:
    analysis = PAIR.analyze(tmp_path)
    assert _waiting(analysis) == pytest.approx(PAIR.waits_us(), abs=0.5)
    assert _communication(analysis).recoverable_us < 12 * (PAIR.transfer_us + 20)


@pytest.mark.parametrize("offset_us", [-1e7, 1e7])
@pytest.mark.parametrize("drift", [-5e-5, 0.0, 5e-5])
def test_other_clocks_change_nothing_but_the_offset(tmp_path: Path, offset_us: float, drift: float) -> None:
    analysis = PAIR.on_clocks({1: (offset_us, drift)}).analyze(tmp_path)
    assert _waiting(analysis) == pytest.approx(PAIR.waits_us(), abs=2.0)
    assert analysis.ranks[1].clock_offset_us == pytest.approx(-offset_us, abs=2.0)


def test_ranks_of_two_groups_are_separated_by_their_end_times_alone(tmp_path: Path) -> None:
    job = DrawnJob(compute_us=uneven(4, slow={1: 1.3, 2: 1.6}), groups=[(0, 2), (1, 3)], clocks=SECONDS_APART)
    analysis = job.analyze(tmp_path)
    assert _waiting(analysis) == pytest.approx(job.waits_us(), abs=2.0)
    assert [rank.clock_offset_us is None for rank in analysis.ranks] == [False, True, False, True]
    assert _said(analysis, "no collective of rank 1, rank 3 could be matched")


def test_process_groups_in_nccls_arguments_are_kept_apart(tmp_path: Path) -> None:
    """Draws two groups with equal events: only NCCL's arguments distinguish them."""
    compute = uneven(4)
    compute[2:] = compute[:2]
    arguments = {0: nccl("5", [0, 1]), 1: nccl("6", [2, 3])}
    job = DrawnJob(compute_us=compute, groups=[(0, 1), (2, 3)], arguments=arguments)
    analysis = job.analyze(tmp_path)
    assert _waiting(analysis) == pytest.approx(job.waits_us(), abs=0.5)
    assert analysis.ranks[2].clock_offset_us is None


def test_an_all_reduce_of_all_ranks_aligns_the_clocks_of_their_groups(tmp_path: Path) -> None:
    job = DrawnJob(compute_us=uneven(4), groups=[(0, 1), (2, 3)], clocks=SECONDS_APART)
    drawings = job.drawings()
    steps = [[e for e in d.events if e["name"].startswith("ProfilerStep")] for d in drawings]
    starts = [
        [(own["ts"] - offset) / (1 + drift) for own in of_rank]
        for of_rank, (offset, drift) in zip(steps, SECONDS_APART.values(), strict=True)
    ]
    for drawing, of_rank, (offset, drift) in zip(drawings, starts, SECONDS_APART.values(), strict=True):
        for k in range(3):
            end = (max(own[k] for own in starts) + 60.0) * (1 + drift) + offset
            begin = of_rank[k] * (1 + drift) + offset
            arguments = nccl("0", range(4), collective="allreduce")
            drawing.kernel("ncclDevKernel_AllReduce", begin, end, launched=begin - 9, stream=20, **arguments)
        drawing.write(tmp_path)
    offsets = [rank.clock_offset_us for rank in analyze([tmp_path]).ranks]
    assert offsets == pytest.approx([-offset for offset, _ in SECONDS_APART.values()], abs=20.0)


def test_a_rank_that_is_not_traced_may_be_the_late_one(tmp_path: Path) -> None:
    job = DrawnJob(compute_us=uneven(8), groups=[range(8)], transfer_us=5.0, drawn=[0, 1])
    analysis = job.analyze(tmp_path)
    assert _said(analysis, "2 of 8 ranks are traced")
    assert _said(analysis, "may be waiting for other ranks")
    assert analysis.diagnosis.wall is not Wall.COMMUNICATION


def test_a_step_with_another_number_of_collectives_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    first, second = PAIR.drawings()
    step = next(e for e in second.events if e["name"] == "ProfilerStep#1")
    second.kernel(COMBINE, step["ts"] + 10, step["ts"] + 15, launched=step["ts"], stream=9)
    first.write(tmp_path), second.write(tmp_path)
    waited = PAIR.waits_us()[0]
    assert _waiting(analyze([tmp_path]))[0] == pytest.approx(waited * 2 / 3, rel=0.05)


def test_collectives_on_other_sides_of_a_steps_border_still_match(tmp_path: Path) -> None:
    """The device runs behind the host, so a step's last combine may begin after its end on one rank only."""
    drawings = PAIR.drawings()
    for event in drawings[0].events:
        if event["name"].startswith("ProfilerStep"):
            event["ts"] -= 60.0
    for drawing in drawings:
        drawing.write(tmp_path)
    assert _waiting(analyze([tmp_path]))[0] == pytest.approx(PAIR.waits_us()[0], rel=0.1)


def test_collectives_of_ranks_that_did_other_things_are_not_matched(tmp_path: Path) -> None:
    one, other = (DrawnJob(compute_us=uneven(2, seed=seed), groups=[(0,), (1,)]) for seed in (1, 2))
    one.drawings()[0].write(tmp_path)
    other.drawings()[1].write(tmp_path)
    analysis = analyze([tmp_path])
    assert _waiting(analysis) == [0.0, 0.0]
    assert analysis.ranks[1].clock_offset_us is None


def test_devices_of_one_process_wait_for_each_other(tmp_path: Path) -> None:
    first, second = PAIR.drawings()
    for event in second.events:
        if "device" in event["args"]:
            event["args"]["device"] = 1
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 10_000
    first.events += [event for event in second.events if not event["name"].startswith("ProfilerStep")]
    first.write(tmp_path)
    analysis = analyze([tmp_path])
    assert [(rank.rank, rank.device, rank.clock_offset_us) for rank in analysis.ranks] == [(0, 0, 0.0), (0, 1, 0.0)]
    assert _waiting(analysis) == pytest.approx(PAIR.waits_us(), rel=0.05)


@pytest.mark.parametrize(("back_us", "waits"), [(400, True), (20, False)])
def test_alone_a_rank_may_have_waited_where_tokens_come_back_far_more_slowly_than_they_go(
    tmp_path: Path, back_us: float, waits: bool
) -> None:
    """Draws layers whose combine lasts much longer than their dispatch, which moves the same tokens: an untraced rank
    is late, or the network is slow."""
    drawing = Drawing(world_size=8)
    for k in range(3):
        at = k * 1000.0
        drawing.step(k, at, at + 205 + back_us).kernel(GEMM, at, at + 100, launched=at)
        drawing.kernel(DISPATCH, at + 100, at + 105, launched=at, stream=8)
        drawing.kernel(EXPERTS, at + 105, at + 205, launched=at)
        drawing.kernel(COMBINE, at + 205, at + 205 + back_us, launched=at, stream=8)
    diagnosis = analyze([drawing.write(tmp_path)]).diagnosis
    assert ("may be waiting" in diagnosis.because) == waits
    assert (diagnosis.wall is Wall.COMMUNICATION) == (not waits)


def test_alone_a_rank_may_have_waited_where_like_collectives_were_shorter(tmp_path: Path) -> None:
    """In one of three steps the combine is short: what it takes beyond that in the others may be waiting, and names no
    wall."""
    drawing = Drawing()
    for k, took in enumerate((300, 20, 300)):
        at = k * 1000
        drawing.step(k, at, at + 1000).kernel(GEMM, at, at + 1000 - took, launched=at)
        drawing.kernel(COMBINE, at + 1000 - took, at + 1000, launched=at, stream=8)
    diagnosis = analyze([drawing.write(tmp_path)]).diagnosis
    assert diagnosis.wall is Wall.UNDETERMINED
    assert "may be waiting" in diagnosis.because


def test_alone_a_rank_whose_collectives_take_the_same_in_each_step_has_transferred(tmp_path: Path) -> None:
    drawing = Drawing()
    for k in range(3):
        at = k * 1000
        drawing.step(k, at, at + 1000).kernel(GEMM, at, at + 700, launched=at)
        drawing.kernel(COMBINE, at + 700, at + 1000, launched=at, stream=8)
    assert analyze([drawing.write(tmp_path)]).diagnosis.wall is Wall.COMMUNICATION


def test_collectives_of_other_sizes_are_not_compared(tmp_path: Path) -> None:
    drawing = Drawing()
    for k, took in enumerate((300, 20, 300)):
        at = k * 1000
        drawing.step(k, at, at + 1000).kernel(GEMM, at, at + 1000 - took, launched=at)
        arguments: dict[str, Any] = {**nccl("3", [0, 1]), "In msg nelems": took * 1000, "dtype": "BFloat16"}
        drawing.kernel(ALL_TO_ALL, at + 1000 - took, at + 1000, launched=at, stream=8, **arguments)
    assert analyze([drawing.write(tmp_path)]).diagnosis.wall is Wall.COMMUNICATION


def _stage(rank: int, holds: list[tuple[float, float]], **arguments: Any) -> Drawing:
    """Draws a pipeline stage, three steps of 1000 us: sends or receives that occupy the device, and compute in
    between."""
    drawing = Drawing(rank=rank)
    for k in range(3):
        base, free = k * 1000.0, k * 1000.0
        drawing.step(k, base, base + 1000)
        for start, end in holds:
            drawing.kernel(GEMM, free, base + start, launched=0.0)
            group: dict[str, Any] = {
                **nccl("7", [0, 1]),
                "Process Group Description": "PIPELINE_MODEL_PARALLEL_GROUP",
                **arguments,
            }
            drawing.kernel(ALL_TO_ALL, base + start, base + end, launched=0.0, stream=12, **group)
            free = base + end
        drawing.kernel(GEMM, free, base + 1000, launched=0.0)
    return drawing


def test_a_receive_beyond_its_shortest_like_is_the_bubble(tmp_path: Path) -> None:
    analysis = analyze([_stage(0, [(100, 500), (600, 610)]).write(tmp_path)])
    finding = _communication(analysis)
    assert finding.parts["pp"] == pytest.approx(20)
    assert _said(analysis, "PP send/recv occupies the device for 0.39 of 1.0 ms")
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert "the pipeline's bubble takes 39 %" in analysis.diagnosis.because
    assert analysis.traces[0].steps[0].communication_by_kind["pp"].exposed_us == pytest.approx(410)


def test_a_stage_alone_cannot_say_that_its_receives_transfer(tmp_path: Path) -> None:
    analysis = analyze([_stage(0, [(100, 300), (600, 800)]).write(tmp_path)])
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert "may be waiting" in analysis.diagnosis.because


def test_with_the_peers_trace_a_receive_waits_until_the_send_is_launched(tmp_path: Path) -> None:
    """Every receive waits 300 us for the other stage: without its trace, the shortest similar receive would not show
    it."""
    _stage(0, [(500, 550)], **{"Collective name": "send", "Dst Rank": 1}).write(tmp_path)
    _stage(1, [(200, 550)], **{"Collective name": "recv", "Src Rank": 0}).write(tmp_path)
    analysis = analyze([tmp_path])
    assert [rank.waiting_by_kind.get("pp", 0.0) for rank in analysis.ranks] == pytest.approx([0.0, 300.0])
    assert not _said(analysis, "may be waiting")


def _ranks_without(analysis: Analysis, *fields: str) -> list[dict[str, object]]:
    return [
        {name: getattr(rank, name) for name in RankTime.__struct_fields__ if name not in fields}
        for rank in analysis.ranks
    ]


def _close(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, abs=1.0)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    return a == b


@settings(max_examples=10)
@given(st.integers(0, 99), st.permutations(range(4)), st.lists(st.integers(-(10**7), 10**7), min_size=4, max_size=4))
def test_numbers_and_clocks_of_ranks_change_nothing_else(seed: int, number: list[int], offsets: list[int]) -> None:
    compute = uneven(4, seed=seed, layers=6, slow={seed % 4: 1.4})
    job = DrawnJob(compute_us=compute, groups=[range(4)])
    order = np.argsort(number)
    renumbered = replace(job, compute_us=compute[order], clocks={r: (float(us), 0.0) for r, us in enumerate(offsets)})
    with TemporaryDirectory() as here, TemporaryDirectory() as there:
        before, after = job.analyze(Path(here)), renumbered.analyze(Path(there))
    was = _ranks_without(before, "rank", "clock_offset_us")
    is_now = _ranks_without(after, "rank", "clock_offset_us")
    assert all(_close(was[order[k]], is_now[k]) for k in range(4))
    assert after.diagnosis.wall == before.diagnosis.wall
    found = [rank.clock_offset_us for rank in after.ranks]
    assert found == pytest.approx([offsets[0] - us for us in offsets], abs=1.0)


def test_the_all_reduce_between_the_first_and_the_last_stage_is_matched(tmp_path: Path) -> None:
    group: dict[str, Any] = {
        **nccl("9", [0, 1], collective="allreduce"),
        "Process Group Description": "EMBEDDING_GROUP",
    }
    for rank, begins in ((0, 700.0), (1, 900.0)):
        drawing = Drawing(rank=rank)
        for at in (0.0, 1000.0, 2000.0):
            drawing.step(int(at) // 1000, at, at + 1000).kernel(GEMM, at, at + begins, launched=at)
            drawing.kernel("ncclDevKernel_AllReduce", at + begins, at + 1000, launched=at, stream=12, **group)
        drawing.write(tmp_path)
    waited = [rank.waiting_by_kind.get("pp", 0.0) for rank in analyze([tmp_path]).ranks]
    assert waited == pytest.approx([200.0, 0.0])


def test_ranks_on_cpus_of_one_machine_are_matched_though_their_threads_wake_up_late(tmp_path: Path) -> None:
    late = np.random.default_rng(5).uniform(50.0, 350.0, (2, 24)).round(1)
    for rank, compute in ((0, 300.0), (1, 500.0)):
        drawing = Drawing(rank=rank, on_cpu=True)
        for k in range(24):
            at = k * 1000.0
            if k % 8 == 0:
                drawing.step(k // 8, at, at + 8000)
            drawing.operator("aten::mm", at, at + compute)
            drawing.range("gloo:all_to_all", at + compute, at + 600 + late[rank, k], thread=GLOO_THREAD)
        drawing.write(tmp_path)
    analysis = analyze([tmp_path])
    assert _waiting(analysis) == pytest.approx([8 * 200.0, 0.0], abs=1.0)
    assert analysis.ranks[1].clock_offset_us == 0.0
