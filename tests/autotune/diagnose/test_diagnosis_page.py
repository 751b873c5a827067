"""The page of `diagnose`: one file, nothing fetched, drawn and zoomed by a real browser, safe from what traces hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from analyzers import analyze
from analyzers.diagnosis import Analysis, Cause, KernelTime, MemoryUse, RankTime, Wall
from analyzers.lanes import Kept, diagnosed
from analyzers.range_tree import range_tree
from analyzers.readers import read
from analyzers.timeline import Timeline
from autotune.cli import main
from autotune.compare.comparison import compared
from autotune.compare.page import comparison_page
from autotune.diagnose.next_steps import next_steps
from autotune.diagnose.page import diagnosis_page
from autotune.diagnose.terminal import show_analysis
from tests.analyzers.drawing import BACKWARD, GEMM, Drawing
from tests.autotune.diagnose.drawn_page import MAX_BYTES, Draw, scripted, two_steps
from tests.autotune.looks.browser import count, needs_browser
from tests.autotune.report.drawn_study import STEPS, analysis_of
from tests.places import TRACES, WITHOUT_SHARED

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
EVIL = "</script><script>document.documentElement.dataset.error='got in'</script><!--<b>&amp;\u2028"


def test_the_page_asks_the_network_for_nothing(tmp_path: Path) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    assert not re.findall(r"https?://|@import|<link|src=", page)
    assert "default-src 'none'" in page


@needs_browser
def test_names_in_traces_are_text_and_nothing_else(tmp_path: Path, drawn: Draw) -> None:
    analysis = analyze([two_steps(tmp_path / "<i>", EVIL)])
    kernel = KernelTime(name=EVIL, compute_class="gemm", count=1, total_us=1.0)
    traces = [msgspec.structs.replace(trace, kernels=[kernel], warnings=[EVIL]) for trace in analysis.traces]
    page = diagnosis_page(msgspec.structs.replace(analysis, traces=traces), EVIL)
    document = drawn(page)
    assert "data-error" not in document
    assert "data-lanes-drawn" in document
    assert "<script>document" not in page
    assert "<!--" not in page


@needs_browser
@needs_traces
@pytest.mark.parametrize(
    "names",
    [
        ["ddp_v100x2_rank1.json.gz"],
        ["nsys_train_3070ti_nvtx.sqlite"],
        ["moe_b200_eager.json.gz"],
        ["dlrm_128_rank0.json.gz", "dlrm_128_rank1.json.gz"],
    ],
    ids=["kineto_steps", "nsys", "no_steps", "two_ranks"],
)
def test_real_traces_are_drawn(names: list[str], tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([TRACES / name for name in names]), " ".join(names))
    assert len(page.encode()) <= MAX_BYTES
    document = drawn(page)
    assert "data-error" not in document
    assert int(re.findall(r'data-lanes-drawn="(\d+)"', document)[0]) > 50
    assert count(document, r'<svg[^>]*class="bar"') >= len(names)


def test_ranks_kernels_memory_are_shown_where_they_are_known() -> None:
    analysis = analysis_of(STEPS[1], burst=2)
    curve = [(0.0, 1.0), (1e6, 71.2), (2e6, 3.0)]
    memory = MemoryUse(
        source="snapshot", peak_gib=71.2, peak_at_us=1e6, limit_gib=80.0, curve=curve, held_at_peak={"backward": 60.0}
    )
    kernel = KernelTime(name="sgemm", compute_class="gemm", precision="bf16", count=4, total_us=80.0)
    traces = [msgspec.structs.replace(trace, kernels=[kernel], memory=memory) for trace in analysis.traces]
    ranks = [
        RankTime(
            rank=n, clock_offset_us=0.0, step_us=2e6, own_us=1.9e6 - n, waiting_us=1e5, late_us=3e3, late_in="experts"
        )
        for n in (0, 1)
    ]
    page = diagnosis_page(Analysis(diagnosis=analysis.diagnosis, traces=traces, ranks=ranks), "study")
    for shown in (
        "sgemm (bf16)",
        "dense GEMM, 80.0 µs",
        "20.0 µs",
        "experts",
        "<polyline",
        "peak 71.2 GiB",
        "backward",
    ):
        assert shown in page
    assert "cannot be drawn: bursts/0002" in page


def test_the_headline_says_what_a_verdict_without_a_wall_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    cause = Cause(
        name="experts_load",
        headline="imbalance: experts of rank 2",
        lost_us=3e5,
        share=0.3,
        ranks=[2],
        evidence=["rank 2 is waited for 400 ms a step, all of it for experts"],
    )
    drawn = analysis_of(STEPS[1], burst=2)
    diagnosis = msgspec.structs.replace(
        drawn.diagnosis, wall=Wall.UNDETERMINED, doubt="no_wall_is_larger", because="drawn", cause=cause
    )
    analysis = msgspec.structs.replace(drawn, diagnosis=diagnosis)
    page = diagnosis_page(analysis, "study", next_steps(analysis))
    assert '<span class="figure">imbalance: experts of rank 2</span>' in page
    assert "300 ms (30.0 %) of the step" in page
    assert "<li>rank 2 is waited for 400 ms a step, all of it for experts</li>" in page
    assert "undetermined" not in page[page.index("<body") : page.index('id="walls"')]
    show_analysis(analysis)
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("imbalance: experts of rank 2, 300 ms (30.0 %) of the step (no wall) drawn - rank 2 is")


@needs_browser
def test_the_page_of_a_comparison_shows_both_steps_and_what_moved(drawn: Draw) -> None:
    found = compared(analysis_of(STEPS[1], burst=2), analysis_of(STEPS[3], burst=6))
    document = drawn(comparison_page(found, ("<first>", "second")))
    assert "data-error" not in document
    assert count(document, r'<svg[^>]*class="bar"') > 2
    assert "change of the step time from A to B: step" in document
    assert count(document, r'aria-label="recompute −') == 1  # a bar for each part that moved
    assert "−39.2 %" in document
    assert "&lt;first&gt;: wall memory, up to 31.0 %" in document
    assert document.index("recompute</td>") < document.index("idle: host</td>") < document.index("exposed DP</td>")


def test_the_command_prints_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = two_steps(tmp_path)
    assert main(["diagnose", str(trace), "--html", str(tmp_path / "d.html")]) == 0
    assert capsys.readouterr().out.startswith("wall: ")
    assert (tmp_path / "d.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["diagnose", str(trace), "--html", str(tmp_path / "none" / "d.html")]) == 2
    assert "→" in capsys.readouterr().err


def test_a_reader_who_has_seen_enough_does_not_cost_the_page(tmp_path: Path) -> None:
    page = tmp_path / "d.html"
    command = [sys.executable, "-m", "autotune.cli", "diagnose", str(two_steps(tmp_path)), "--html", str(page)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.close()
    assert running.returncode == 0
    assert page.is_file()


def test_a_trace_that_one_process_reads_is_read_once_for_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, opened = two_steps(tmp_path), list[Path]()
    again = diagnosis_page(analyze([path]), "drawn")

    def counted(trace: Path) -> list[Timeline]:
        opened.append(trace)
        return read(trace)

    monkeypatch.setattr("analyzers.analysis.read", counted)
    monkeypatch.setattr("analyzers.lanes.read", counted)
    kept: Kept = {}
    assert diagnosis_page(analyze([path], kept=kept), "drawn", kept=kept) == again
    assert opened == [path]
    assert main(["diagnose", str(path), "--html", str(tmp_path / "page.html")]) == 0
    assert opened == [path, path]


@needs_browser
def test_tables_sort_by_a_click_and_copy_as_csv(tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    asked = """
      Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => {
        document.documentElement.dataset.csv = text.replaceAll("\\n", "|");
      } } });
      const table = document.querySelector("#steps table"), said = document.documentElement.dataset;
      const parts = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent).join("|");
      table.querySelectorAll(".sort")[1].click();
      said.down = parts();
      table.querySelectorAll(".sort")[1].click();
      said.up = parts();
      table.parentElement.querySelector(".copy").click();
    """
    document = drawn(scripted(page, asked))
    assert "data-error" not in document
    down, up = (re.findall(f'data-{way}="([^"]*)"', document)[0].split("|") for way in ("down", "up"))
    assert down[:3] == ["compute", "· dense GEMM", "· · fp32"]  # the parts of a part follow it
    assert up[-3:] == down[:3]
    assert sorted(down) == sorted(up)
    (csv,) = re.findall('data-csv="([^"]*)"', document)
    lines = csv.split("|")
    assert lines[0] == "part,time (µs),share (%)"
    assert "compute,650,43.3" in lines


@needs_browser
def test_the_marks_of_a_figure_are_reached_with_the_keyboard(tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    asked = """
      const figure = document.querySelector("svg.bar");
      figure.focus();
      for (const key of ["ArrowRight", "ArrowRight"]) figure.dispatchEvent(new KeyboardEvent("keydown", { key }));
      document.documentElement.dataset.shown = document.getElementById("tip").textContent;
    """
    document = drawn(scripted(page, asked))
    assert 'data-shown="exposed other communication: 400 µs, 40.0 %"' in document
    assert count(document, r'<svg[^>]*class="bar"[^>]*tabindex="0"') == 2


def test_ranges_stand_below_the_ranges_they_ran_in(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 1000).range("forward", 10, 500).range("backward", 500, 900)
    for layer in range(3):
        at = 20 + 150 * layer
        drawing.range("layer", at, at + 100).range("experts", at + 10, at + 50)
        drawing.kernel(GEMM, at + 20, at + 90, launched=at + 15)
    drawing.kernel(GEMM, 600, 800, launched=550, thread=BACKWARD)  # autograd's thread, which has no ranges
    analysis = analyze([drawing.write(tmp_path)])
    tree = range_tree(diagnosed(analysis.traces[0]))
    ranges = [(node.depth, node.name, node.count, node.host_us, node.device_us, node.kernels) for node in tree]
    assert ranges == [
        (0, "ProfilerStep#1", 1, 1000, 410, 4),
        (1, "forward", 1, 490, 210, 3),
        (2, "layer", 3, 300, 210, 3),
        (3, "experts", 3, 120, 210, 3),
        (1, "backward", 1, 400, 200, 1),
    ]
    page = diagnosis_page(analysis, "drawn")
    assert page.index('id="tree"') < page.index('<code title="layer">') < page.index('<code title="experts">')


def test_a_range_that_starts_a_moment_before_the_step_that_it_is_in_is_below_it(tmp_path: Path) -> None:
    drawing = Drawing().range("forward", 99.95, 600).step(1, 100, 1000).range("experts", 200, 300)
    drawing.kernel(GEMM, 220, 290, launched=210)
    tree = range_tree(diagnosed(analyze([drawing.write(tmp_path)]).traces[0]))
    assert [(node.depth, node.name) for node in tree] == [(0, "ProfilerStep#1"), (1, "forward"), (2, "experts")]
