"""`compare`: what moved, largest first, and what makes two traces an unequal pair."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from analyzers.diagnosis import Analysis, Diagnosis, Dropped, KernelTime, RankTime, Wall
from autotune.cli import main
from autotune.compare.comparison import Comparison, change, compared, headline, signed
from autotune.compare.terminal import show_comparison
from tests.autotune.report.drawn_study import STEPS, analysis_of, write_study
from tests.places import TRACES, WITHOUT_SHARED

RECOMPUTING, LARGER_BATCH = (analysis_of(STEPS[number], burst) for number, burst in ((1, 2), (3, 6)))
NOTHING = Analysis(diagnosis=Diagnosis(wall=Wall.UNDETERMINED, margin=0.0, because="no trace"), traces=[])


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(found: Comparison, capsys: pytest.CaptureFixture[str]) -> str:
    show_comparison(found)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    return text


def with_traces(analysis: Analysis, **fields: object) -> Analysis:
    traces = [msgspec.structs.replace(trace, **fields) for trace in analysis.traces]
    return msgspec.structs.replace(analysis, traces=traces)


def test_a_comparison_says_what_moved_largest_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(compared(RECOMPUTING, LARGER_BATCH), capsys).splitlines()
    assert lines[0] == "step 2.02 s → 1.23 s (−39.2 %): mostly recompute −566 ms"
    assert lines[1].startswith("A: wall memory, up to 31.0 %")
    assert lines[2].startswith("B: wall communication, up to")
    table = lines[next(index for index, line in enumerate(lines) if "what moved first" in line) + 2 :]
    assert [line.split("  ")[0].strip() for line in table[:3]] == ["recompute", "idle: host", "exposed DP"]


def test_parts_add_up_to_what_the_step_moved() -> None:
    found = compared(RECOMPUTING, LARGER_BATCH)
    moved = sum(move.moved_us for move in found.of("part"))
    was, now = (max(sum(s.duration_us for s in t.steps) / 2 for t in a.traces) for a in (RECOMPUTING, LARGER_BATCH))
    assert moved == pytest.approx(now - was)


def test_a_comparison_with_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(compared(RECOMPUTING, NOTHING), capsys).count("B left no trace: nothing to compare") == 1


def test_two_equal_traces_have_not_moved() -> None:
    found = compared(RECOMPUTING, RECOMPUTING)
    assert "no part moved by 1 % of the step" in headline(found)
    assert {signed(move.moved_us) for move in found.moved} == {"0 µs"}


def test_a_trace_without_steps_is_compared_by_shares() -> None:
    found = compared(with_traces(RECOMPUTING, steps=[]), LARGER_BATCH)
    assert not found.times_compare
    assert "shares can be compared, times cannot" in headline(found)
    assert any(note.startswith("A has no step markers") for note in found.notes)
    shares = [abs(move.moved_share) for move in found.moved]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": []}, "A ran on GPUs, B on CPUs"),
        ({"format": "nsys"}, "A is a kineto trace, B nsys"),
        ({"steps": RECOMPUTING.traces[0].steps[:1]}, "A averages 2 steps, B 1"),
        (
            {
                "coverage": msgspec.structs.replace(
                    RECOMPUTING.traces[0].coverage, dropped=[Dropped(what="events", count=3, why="cut")]
                )
            },
            "B has lost 3 events (cut) and 1 more",
        ),
    ],
)
def test_an_unequal_pair_is_said_to_be_one(change: dict[str, object], said: str) -> None:
    assert any(note.startswith(said) for note in compared(RECOMPUTING, with_traces(LARGER_BATCH, **change)).notes)


def test_kernels_are_compared_by_step_and_name(capsys: pytest.CaptureFixture[str]) -> None:
    def kernels(*times: tuple[str, float]) -> list[KernelTime]:
        return [KernelTime(name=name, compute_class="gemm", count=2, total_us=us) for name, us in times]

    a = with_traces(RECOMPUTING, kernels=kernels(("gone", 80e3), ("grown", 10e3)))
    b = with_traces(LARGER_BATCH, kernels=kernels(("grown", 50e3)))
    found = compared(a, b)
    gone, grown = found.of("kernel")
    assert (gone.a_us, gone.b_us, gone.moved_us) == (40e3, None, -40e3)
    assert (grown.a_us, grown.b_us) == (5e3, 25e3)
    assert "40.0 ms  not listed  −40.0 ms  gone" in printed(found, capsys)


def test_what_ranks_wait_for_each_other_is_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    def waiting(analysis: Analysis, us: float) -> Analysis:
        ranks = [
            RankTime(rank=n, clock_offset_us=0.0, step_us=1e6, own_us=1e6 - n * us, waiting_us=n * us) for n in (0, 1)
        ]
        return msgspec.structs.replace(analysis, ranks=ranks)

    found = compared(waiting(RECOMPUTING, 24e3), waiting(LARGER_BATCH, 3e3))
    (move,) = found.of("waiting")
    assert (move.a_us, move.b_us, move.moved_us) == (24e3, 3e3, -21e3)
    assert "the rank that waits longest for the others: 24.0 ms → 3.00 ms per step" in printed(found, capsys)


def test_two_trials_of_a_study_are_named_by_their_numbers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path / "study")
    assert main(["compare", str(study / "1"), str(study / "3"), "--json"]) == 0
    document = msgspec.json.decode(capfd.readouterr().out)
    assert list(document)[:3] == ["schema", "a", "b"]
    assert document["a"] == msgspec.to_builtins(RECOMPUTING)
    assert document["moved"][0]["name"] == "recompute"
    assert main(["diagnose", str(study / "1"), "--json"]) == 0
    diagnosed = msgspec.json.decode(capfd.readouterr().out)
    assert diagnosed.pop("next")["wall"] == "memory"
    assert diagnosed == msgspec.to_builtins(RECOMPUTING)


def test_one_trial_given_twice_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path / "study")
    assert main(["compare", str(study / "1"), str(study / "1")]) == 0
    assert "A and B are the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study/1", "study/99"], "the study has no trial 99"),
        (["study/0", "study/1"], "trial 0 has no analysis: it failed (oom)"),
        (["study", "study/1"], "is a whole study, not one job"),
        (["study/1", "study/none"], "there is no such file or folder"),
    ],
)
def test_what_cannot_be_compared_is_said_with_what_to_do(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_study(tmp_path / "study")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert "→" in complaint


@pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
def test_the_input_that_no_longer_holds_up_training_is_seen_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *(str(TRACES / f"resnet50_w{n}.json.gz") for n in (0, 4))]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert re.match(r"step 175 ms → 131 ms \(−24\.9 %\): mostly idle: host −\d\d\.\d ms \(loading data", first)


@pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
def test_the_bars_of_the_page_leave_out_warm_up_as_its_table_does(tmp_path: Path) -> None:
    traces = [str(TRACES / f"resnet50_w{n}.json.gz") for n in (0, 4)]
    assert main(["compare", *traces, "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    bars = page[page.index("The average step") : page.index("What moved, largest first")]
    assert re.findall(r">(\d+ %)<", bars) == ["55 %", "43 %", "74 %", "22 %"]


def test_two_trials_are_compared_by_their_measured_steps_and_the_profilers_cost_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "study")
    assert main(["compare", str(study / "1"), str(study / "3")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(
        "−39.2 %, step 1.66 s → 1.01 s without the profiler; traced step 2.02 s → 1.23 s, −39.2 %: mostly"
    )
    assert "traced steps vs the median of those without the profiler: +21.8 % in A, +21.8 % in B" in text
    found = compared(RECOMPUTING, LARGER_BATCH, steps_us=(1.0e6, 2.0e6))
    assert change(found)[0] == "+100.0 %"
    assert compared(RECOMPUTING, LARGER_BATCH, steps_us=(1.0e6, None)).untraced is None
