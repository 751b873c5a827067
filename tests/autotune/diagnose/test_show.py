"""Checks the output of `diagnose`: verdict first, bars that keep their proportions, 80 columns, no colour in a pipe."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analyzers import analyze
from analyzers.diagnosis import Analysis, KernelTime, MemoryUse, RangeTime, RankTime, UnknownKernel, Wall
from analyzers.wording import ms
from autotune.check.findings import show_findings, show_nearest
from autotune.diagnose.terminal import NOT_A_VERDICT, judged_words, show_analysis
from autotune.doctor.checks import Found
from autotune.doctor.terminal import show_doctor
from autotune.estimate.memory import Memory, show_memory
from autotune.looks.segments import counted_steps, judged_steps, mean_segments, slowest
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import plain_console
from tests.analyzers.drawing import GEMM, Drawing
from tests.autotune.report.drawn_study import STEPS, analysis_of
from trainer.recipe.rules import Finding, FindingKind

RECOMPUTING = analysis_of(STEPS[1], burst=2)


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    show_analysis(RECOMPUTING)
    lines = printed(capsys).splitlines()
    assert lines[0] == "wall: memory, up to 556 ms (31.0 %) of the step"
    assert lines[1] == "memory leads host by 15.0% of the step"


def test_a_bar_keeps_the_proportions_of_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    show_analysis(RECOMPUTING)
    bars = [line.split()[-1] for line in printed(capsys).splitlines() if "ProfilerStep#" in line]
    assert len(bars) == 4
    longest = max(bars, key=len)
    assert len(longest) > 40
    assert longest.count("c") / len(longest) == pytest.approx(0.39, abs=1 / len(longest))
    assert longest.count("r") / len(longest) == pytest.approx(0.31, abs=1 / len(longest))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_bar_fills_the_terminal_after_a_name_of_any_length(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    named = [msgspec.structs.replace(trace, rank=None, path="/traces/" + 40 * "long") for trace in RECOMPUTING.traces]
    show_analysis(Analysis(diagnosis=RECOMPUTING.diagnosis, traces=named))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(len(line) == columns and line.endswith("hs") and "tep#12" in line for line in lines) == 1


def test_every_letter_of_a_bar_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    show_analysis(RECOMPUTING)
    text = " ".join(printed(capsys).split())
    for explained in (
        "c compute",
        "r recompute",
        "d exposed EP dispatch",
        "g exposed DP",
        "h idle: host",
        "s idle: sync",
    ):
        assert explained in text


def test_walls_carry_their_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    show_analysis(RECOMPUTING)
    text = printed(capsys)
    assert text.index("memory: up to") < text.index("host: up to") < text.index("communication: up to")
    assert "  - rank 1 is idle for 16.0% of the step before a launch" in text


def test_many_ranks_are_shown_by_their_average_slowest_first(capsys: pytest.CaptureFixture[str]) -> None:
    traces = [trace for trace in RECOMPUTING.traces for _ in range(20)]
    show_analysis(Analysis(diagnosis=RECOMPUTING.diagnosis, traces=traces))
    lines = printed(capsys).splitlines()
    rows = [line for line in lines if "average of 2  " in line]
    assert len(rows) == 11
    assert all("rank 1" in row for row in rows)
    assert any(line.startswith(" worst: rank 1 P") and "Step#12 " in line for line in lines)


def test_walls_with_nothing_to_give_back_take_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    none = msgspec.structs.replace(RECOMPUTING.diagnosis.walls[0], recoverable_us=0.0, share=0.0, evidence=["all well"])
    diagnosis = msgspec.structs.replace(RECOMPUTING.diagnosis, walls=[none])
    show_analysis(Analysis(diagnosis=diagnosis, traces=RECOMPUTING.traces))
    assert "memory: nothing to recover: all well" in printed(capsys)


def test_a_run_that_does_not_fit_has_no_time_to_give_back(capsys: pytest.CaptureFixture[str]) -> None:
    out_of_memory = msgspec.structs.replace(RECOMPUTING.diagnosis.walls[0], recoverable_us=0.0, share=1.0)
    diagnosis = msgspec.structs.replace(
        RECOMPUTING.diagnosis, walls=[out_of_memory], because="rank 0 ran out of memory"
    )
    show_analysis(Analysis(diagnosis=diagnosis, traces=[]))
    assert printed(capsys).splitlines()[:2] == ["wall: memory", "rank 0 ran out of memory"]


def test_a_figure_stays_on_one_line_with_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    because = " ".join(f"and {n} ms (7 %)" for n in range(100, 160))
    diagnosis = msgspec.structs.replace(RECOMPUTING.diagnosis, because=because)
    show_analysis(Analysis(diagnosis=diagnosis, traces=[]))
    assert not [line for line in printed(capsys).splitlines() if line.startswith(("ms", "%"))]


def test_a_name_from_a_trace_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2Jkernel\r\x9b31m"
    trace = RECOMPUTING.traces[1]
    coverage = msgspec.structs.replace(trace.coverage, kernels_unknown=[UnknownKernel(name=evil, total_us=7.0)])
    kernel = KernelTime(name=evil, compute_class="other", count=1, total_us=7.0)
    named = msgspec.structs.replace(
        trace, coverage=coverage, kernels=[kernel], path=evil, rank=None, warnings=[f"odd: {evil}"]
    )
    show_analysis(Analysis(diagnosis=RECOMPUTING.diagnosis, traces=[named]))
    text = printed(capsys)
    assert "\r" not in text
    assert "\x9b" not in text
    assert "�[2Jkernel��31m" in text


def test_kernels_ranges_memory_and_ranks_are_shown_where_they_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = KernelTime(name="void at::native::reduce_kernel<4, X>(int)", compute_class="gemm", count=3, total_us=9e3)
    experts = RangeTime(
        name="experts", count=2, host_us=1e3, kernels=4, device_us=5e3, kernels_all_threads=6, device_all_threads_us=8e3
    )
    memory = MemoryUse(
        source="snapshot", peak_gib=71.2, limit_gib=80.0, peak_step="ProfilerStep#11", peak_at_share=0.62,
        peak_phase="backward", fragmentation_gib=3.8, allocator_retries=2,
    )  # fmt: skip
    trace = msgspec.structs.replace(
        RECOMPUTING.traces[1],
        kernels=[kernel],
        ranges=[experts],
        memory=memory,
    )
    ranks = [
        RankTime(
            rank=n,
            clock_offset_us=0.0,
            step_us=100e3,
            own_us=90e3 - n,
            waiting_us=10e3,
            late_us=7e3 * n,
            late_in="experts",
        )
        for n in (0, 1)
    ]
    show_analysis(Analysis(diagnosis=RECOMPUTING.diagnosis, traces=[RECOMPUTING.traces[0], trace], ranks=[*ranks]))
    text = printed(capsys)
    # rank 0 has most time of its own, so that its trace is the one shown
    assert "average step of rank 0" in text
    assert "7.00 ms, behind in experts" in text
    show_analysis(Analysis(diagnosis=RECOMPUTING.diagnosis, traces=[trace]))
    text = printed(capsys)
    assert "9.00 ms     3  gemm   reduce_kernel<4, X>" in text
    assert "8.00 ms      1.00 ms      2  experts" in text
    said = " ".join(text.split())
    assert "memory: peak 71.2 GiB of 80.0 GiB in ProfilerStep#11, 62 % into it, during backward" in said
    assert "fragmentation 3.80 GiB, 2 allocator retries" in said


def test_errors_come_before_remarks_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    remark = finding(FindingKind.AUTOSET, "vocabulary is padded", {})
    error = finding(FindingKind.ERROR, "8 heads cannot be split by [TP=3]", {"tensor_model_parallel_size": 2})
    show_findings([remark, error])
    text = printed(capsys)
    assert text.index("R009: 8 heads cannot be split by [TP=3]") < text.index("autoset: ")
    assert "→ choose a divisor (nearest: tensor_model_parallel_size: 2)" in text
    assert text.splitlines()[-1] == "1 error, 1 remark"


def test_a_hint_that_names_the_nearest_value_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    error = finding(
        FindingKind.ERROR, "8 heads", {"tensor_model_parallel_size": 2}, hint="set tensor_model_parallel_size to 2"
    )
    show_findings([error])
    assert printed(capsys).count("tensor_model_parallel_size") == 1


def test_the_nearest_recipe_is_described_by_its_changes(capsys: pytest.CaptureFixture[str]) -> None:
    show_nearest({"context_parallel_size": (3, 2)})
    show_nearest(None)
    assert printed(capsys).splitlines() == [
        "nearest legal recipe: context_parallel_size 3 → 2",
        "no change of knobs that are not frozen makes this recipe legal: change",
        "tune.freeze, the model or the cluster",
    ]


def predicted(*, peak_gib: float, upper_gib: float) -> Memory:
    """Returns the predicted memory of a GPU of 80 GiB."""
    return {
        "limit_gib": 80.0,
        "peak_gib": peak_gib,
        "upper_gib": upper_gib,
        "outside_gib": 0.0,
        "fits": upper_gib <= 80.0,
        "may_fit": peak_gib <= 80.0,
        "hottest": {"pp_rank": 0},
        "by_part": {"weights": peak_gib},
        "calibration": {"rows": 0, "error_pct": {"median": None, "p90": None}},
    }


def test_memory_near_its_limit_may_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    memory = predicted(peak_gib=79.9, upper_gib=95.0)
    show_memory(memory)
    show_memory({**memory, "limit_gib": None})
    said = [line for line in printed(capsys).splitlines() if line.startswith("estimated")]
    assert said == [
        "estimated peak 79.9 GiB, upper bound 95.0 GiB, limit 80.0 GiB: may not fit",
        "estimated peak 79.9 GiB, upper bound 95.0 GiB, no limit known",
    ]


def test_a_recipe_without_findings_is_said_to_be_legal(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([])
    assert printed(capsys) == "no rule is violated\n"


def test_the_predicted_memory_follows_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([], predicted(peak_gib=60.0, upper_gib=70.0))
    assert "fits" in printed(capsys).splitlines()[-1]


def test_the_doctor_shows_what_is_here_then_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    here = Found(what="torch", status="found", found="2.13.0, CPU build", needed_for="engine megatron", how="")
    gone = Found(what="nsys", status="missing", found="", needed_for="recording Nsight traces", how="install it")
    show_doctor([gone, here])
    text = printed(capsys)
    assert text.index("torch  2.13.0, CPU build") < text.index("missing: nsys, needed for recording Nsight traces")
    assert "  → install it" in text


def finding(kind: FindingKind, message: str, suggestion: dict[str, int], hint: str = "choose a divisor") -> Finding:
    return Finding(
        rule="R009",
        kind=kind,
        message=message,
        hint=hint,
        knobs=(),
        source="rules.md",
        suggestion=suggestion,
    )


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_column_is_cut_off_in_a_narrow_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = "7.0 ms to EP combine, behind in the host (Python between operators)"
    print_table(
        plain_console(), "ranks", ("rank", "step", "own", "waits", "<late"), [("0", "1 s", "1 s", "1 s", words)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    assert " ".join(line[lines[2].index("late") :] for line in lines[3:]).split() == words.split()


def test_a_cut_trace_says_so_before_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = msgspec.structs.replace(RECOMPUTING.diagnosis, wall=Wall.UNDETERMINED, cut_short="cut short at 1.2 MB")
    show_analysis(Analysis(diagnosis=diagnosis, traces=RECOMPUTING.traces))
    text = printed(capsys)
    assert text.startswith("cut short at 1.2 MB, wall: undetermined\n")
    assert text.index(NOT_A_VERDICT) < text.index("memory: up to")


def test_the_table_of_the_average_step_has_the_figures_of_the_evidence(tmp_path: Path) -> None:
    """The job has two ranks: the table, the headline and the walls are those of the judged one."""
    traces = []
    for rank, idle in enumerate((100, 300)):
        drawing = Drawing(rank=rank)
        for number in (1, 2, 3):
            start = 1000.0 * number
            drawing.step(number, start, start + 1000)
            drawing.kernel(GEMM, start + idle, start + 1000, launched=start + idle - 5)
        traces.append(drawing.write(tmp_path))
    analysis = analyze(traces)
    judged = slowest(analysis)
    assert judged is not None
    table = {part.kind.words: part.us for part in mean_segments(judged_steps(analysis))}
    host = analysis.diagnosis.finding(Wall.HOST)
    assert host is not None
    assert f" for {ms(table['idle: host'])} of " in host.evidence[0]
    assert f" for {ms(table['idle: host'])} of " in analysis.diagnosis.because
    assert sum("code outside CUDA calls" in line for line in host.evidence) == 1  # no figure twice
    assert {part.kind.words: part.us for part in mean_segments(counted_steps(judged))} == table
    assert judged_words(analysis).endswith(f"rank {judged.rank}")
