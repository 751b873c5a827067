"""What the terminal shows: the verdict first, bars that keep their proportions, 80 columns, no colour in a pipe."""

from __future__ import annotations

import msgspec
import pytest

from analyzers.diagnosis import Analysis, Diagnosis, Wall
from autotune.doctor import Found
from autotune.findings import show_findings, show_nearest
from autotune.memory import show_memory
from autotune.show import BAR_COLUMNS, show_analysis, show_comparison, show_doctor
from tests.autotune.report.drawn_study import STEPS, analysis_of
from trainer.recipe.rules import Finding, FindingKind

RECOMPUTING, LARGER_BATCH = (analysis_of(STEPS[number], burst) for number, burst in ((1, 2), (3, 6)))


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_the_verdict_stands_first(capsys: pytest.CaptureFixture[str]) -> None:
    show_analysis(RECOMPUTING)
    lines = printed(capsys).splitlines()
    assert lines[0] == "wall: memory, up to 556 ms (31.0 %) of a step"
    assert lines[1] == "memory leads host by 15.0% of the step"


def test_a_bar_keeps_the_proportions_of_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    show_analysis(RECOMPUTING)
    bars = [line.split()[-1] for line in printed(capsys).splitlines() if "ProfilerStep#" in line]
    assert len(bars) == 4
    longest = max(bars, key=len)
    assert len(longest) == BAR_COLUMNS
    assert longest.count("c") / BAR_COLUMNS == pytest.approx(0.39, abs=1 / BAR_COLUMNS)
    assert longest.count("r") / BAR_COLUMNS == pytest.approx(0.31, abs=1 / BAR_COLUMNS)


def test_a_bar_beside_a_long_name_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    named = [msgspec.structs.replace(trace, rank=None, path="/traces/" + 40 * "long") for trace in RECOMPUTING.traces]
    show_analysis(Analysis(diagnosis=RECOMPUTING.diagnosis, traces=named))
    bars = [line.split()[-1] for line in printed(capsys).splitlines() if "longlong" in line and "ms" not in line]
    assert max(map(len, bars)) == BAR_COLUMNS


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
    rows = [line for line in printed(capsys).splitlines() if "average  " in line]
    assert len(rows) == 16
    assert all("rank 1" in row for row in rows)


def test_a_comparison_says_what_moved_largest_first(capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison(RECOMPUTING, LARGER_BATCH)
    lines = printed(capsys).splitlines()
    assert lines[0] == "step 2.02 s → 1.23 s (−39.2 %), wall memory → communication"
    table = lines[next(index for index, line in enumerate(lines) if "average step" in line) + 1 :]
    assert [line.split("  ")[0].strip() for line in table[:3]] == ["recompute", "idle: host", "exposed DP"]


def test_a_comparison_with_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Analysis(diagnosis=Diagnosis(wall=Wall.UNDETERMINED, margin=0.0, because="no trace"), traces=[])
    show_comparison(RECOMPUTING, nothing)
    assert "nothing to compare" in printed(capsys)


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


def test_the_nearest_recipe_is_told_by_its_changes(capsys: pytest.CaptureFixture[str]) -> None:
    show_nearest({"context_parallel_size": (3, 2)})
    show_nearest(None)
    assert printed(capsys).splitlines() == [
        "nearest legal recipe: context_parallel_size 3 → 2",
        "no change of knobs makes this recipe legal: change the model or the cluster",
    ]


def test_memory_near_its_limit_may_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    memory = {"limit_gib": 80.0, "peak_gib": 79.9, "upper_gib": 95.0, "fits": True, "by_part": {"weights": 79.9}}
    show_memory(memory)
    show_memory({**memory, "limit_gib": None})
    said = [line for line in printed(capsys).splitlines() if line.startswith("estimated")]
    assert said == [
        "estimated peak 79.9 GiB a rank, 95.0 GiB at worst, limit 80.0 GiB: may not fit",
        "estimated peak 79.9 GiB a rank, 95.0 GiB at worst, no limit known",
    ]


def test_a_recipe_without_findings_is_said_to_be_legal(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([])
    assert printed(capsys) == "no rule is broken\n"


def test_the_predicted_memory_follows_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings(
        [], {"limit_gib": 80.0, "peak_gib": 60.0, "upper_gib": 70.0, "fits": True, "by_part": {"weights": 60.0}}
    )
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
