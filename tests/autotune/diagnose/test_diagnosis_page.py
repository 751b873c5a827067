"""The page of `diagnose`: one file, nothing fetched, drawn and zoomed by a real browser, safe from what traces hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from analyzers import analyze
from analyzers.diagnosis import Analysis, KernelTime, MemoryUse, RankTime
from analyzers.lanes import Lane, Lanes, Place, lanes
from autotune.cli import main
from autotune.compare.comparison import compared
from autotune.compare.page import comparison_page
from autotune.diagnose.lanes import EVENTS, lanes_document, thinned
from autotune.diagnose.page import diagnosis_page
from autotune.looks.segments import slowest, steps_of
from tests.analyzers.drawing import ALL_TO_ALL, GEMM, GLOO_THREAD, Drawing
from tests.autotune.looks.browser import count, document_of, needs_browser
from tests.autotune.report.drawn_study import STEPS, analysis_of
from tests.places import TRACES, WITHOUT_SHARED

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=WITHOUT_SHARED)
MOST_BYTES = 2_000_000
EVIL = "</script><script>document.documentElement.dataset.error='got in'</script><!--<b>&amp;\u2028"
Draw = Callable[..., str]


@pytest.fixture
def drawn(tmp_path: Path) -> Draw:
    def draw(page: str, fragment: str = "") -> str:
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        return document_of(tmp_path / "page.html", tmp_path / "profile", fragment)

    return draw


def two_steps(folder: Path, name: str = GEMM) -> Path:
    """A product and an exchange in each of two steps, the second twice as long."""
    drawing = Drawing()
    for number, start in ((1, 0.0), (2, 1000.0)):
        length = 1000.0 * number
        drawing.step(number, start, start + length)
        drawing.operator("aten::mm", start + 5, start + 60)
        drawing.kernel(name, start + 100, start + 0.5 * length, launched=start + 10)
        drawing.kernel(ALL_TO_ALL, start + 0.5 * length, start + 0.9 * length, launched=start + 20, stream=8)
    return drawing.write(folder)


def on_cpu(folder: Path) -> Path:
    drawing = Drawing(on_cpu=True).step(1, 0, 1000)
    drawing.operator("aten::mm", 10, 400).range("gloo:all_to_all", 400, 900, thread=GLOO_THREAD)
    return drawing.write(folder)


def data_of(page: str) -> dict[str, object]:
    (text,) = re.findall(r'<script type="application/json" id="lanes-data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, object] = json.loads(text)
    return found


def test_the_page_asks_the_network_for_nothing(tmp_path: Path) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    assert not re.findall(r"https?://|@import|<link|src=", page)
    assert "default-src 'none'" in page


def test_the_worst_step_is_in_the_page_with_its_streams_and_threads(tmp_path: Path) -> None:
    data = data_of(diagnosis_page(analyze([two_steps(tmp_path)]), "drawn"))
    assert data["duration"] == 2_000_000
    labels = [lane["label"] for lane in data["lanes"]]  # type: ignore[attr-defined]
    assert labels == ["idle by cause", "stream 7", "stream 8", "thread 100"]
    names = data["names"]
    assert {GEMM, "ncclDevKernel_SendRecv", "aten::mm"} <= set(names)  # type: ignore[call-overload]


def test_a_rank_on_cpus_shows_its_threads(tmp_path: Path) -> None:
    data = data_of(diagnosis_page(analyze([on_cpu(tmp_path)]), "drawn"))
    words = {key["words"] for key in data["keys"]}  # type: ignore[attr-defined]
    assert {"dense GEMM", "all-to-all", "idle: host"} <= words


@needs_browser
def test_the_lanes_are_drawn_and_zoom_by_address_and_by_key(tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    zoomed = drawn(page, "at=100,400.5")
    assert 'data-lanes-from="100000"' in zoomed
    assert 'data-lanes-to="400500"' in zoomed
    moved = drawn(page.replace("</body>", _keys("+", "ArrowRight") + "</body>"))
    assert 'data-lanes-from="580000" data-lanes-to="1780000"' in moved
    # the next time without work begins at 1800 µs, outside of what is shown: the view follows
    document = drawn(page.replace("</body>", _keys("+", "ArrowRight", "n") + "</body>"))
    assert "data-error" not in document
    assert 'data-lanes-from="800000" data-lanes-to="2000000"' in document
    assert re.search(r"<output[^>]*>host: [^<]*idle by cause, at 1.8 ms, for 200 µs", document)


IDLE_ROW_PX, STREAM_ROW_PX = 34, 62  # from the top of the canvas: under the axis, the idle time and then the stream


def coloured(at_px: int) -> str:
    """A script that says on the page how much of a row of pixels is coloured: nothing else is drawn there."""
    return f"""<script>{{
      const c = document.getElementById("lanes-canvas"), left = 130, most = c.width - left;
      const pixels = c.getContext("2d").getImageData(left, {at_px}, most, 1).data;
      const sum = pixels.reduce((all, value, at) => all + (at % 4 === 3 ? value : 0), 0);
      document.documentElement.dataset.coloured{at_px} = (sum / 255 / most).toFixed(4);
    }}</script></body>"""


@needs_browser
@pytest.mark.parametrize(("gaps", "idle_share"), [(600, 0.001), (600, 0.09), (60_000, 0.09)])
def test_a_lane_has_as_much_colour_as_its_events_have_time(
    tmp_path: Path, drawn: Draw, gaps: int, idle_share: float
) -> None:
    each = 1e6 / gaps
    drawing = Drawing().step(1, 0, 1e6)
    for at in np.arange(gaps) * each:
        drawing.kernel(GEMM, at, at + (1 - idle_share) * each, launched=max(0, at - 5), launch_took=1e-3)
    page = diagnosis_page(analyze([drawing.write(tmp_path)]), "drawn")
    document = drawn(page.replace("</body>", coloured(IDLE_ROW_PX)).replace("</body>", coloured(STREAM_ROW_PX)))
    shares = [float(share) for share in re.findall(r'data-coloured\d+="([\d.]+)"', document)]
    assert shares == pytest.approx([idle_share, 1 - idle_share], abs=0.02)


@needs_browser
def test_the_ticks_of_a_zoomed_lane_tell_each_other_apart(tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    spy = """<script>{
      const said = new Set(), write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        if (y === 9) said.add(text);
        document.documentElement.dataset.ticks = [...said].join("|");
      };
      location.hash = "at=1500.1,1500.5";
      dispatchEvent(new HashChangeEvent("hashchange"));
    }</script></body>"""
    (ticks,) = re.findall(r'data-ticks="([^"]*)"', drawn(page.replace("</body>", spy)))
    assert len(ticks.split("|")) >= 4
    assert "1.50020 ms" in ticks.split("|")


def _keys(*pressed: str) -> str:
    events = "".join(f"c.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}));" for key in pressed)
    return f"<script>{{const c = document.getElementById('lanes-canvas'); {events}}}</script>"


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
    assert len(page.encode()) <= MOST_BYTES
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


def many_events(number: int, *, names: int = 50) -> Lanes:
    """Events of 1 µs without a gap in three lanes, every thousandth of 1 ms; names are long."""
    numbers = np.arange(number)
    took = np.where(numbers % 1000 == 0, 1000.0, 1.0)
    end = np.cumsum(took)
    lane = np.repeat(np.arange(3), -(-number // 3))[:number]
    return Lanes(
        lanes=tuple(Lane(place=Place.DEVICE, label=f"stream {n}") for n in range(3)),
        names=tuple(f"kernel_{n}_{'x' * 500}" for n in range(names)),
        start_us=end - took,
        end_us=end,
        lane=lane,
        row=np.zeros(number, dtype=np.int64),
        name=numbers % names,
        key=np.full(number, 5),
        duration_us=float(end[-1]),
    )


def test_a_page_stays_small_whatever_the_step_holds() -> None:
    found = many_events(400_000, names=30_000)
    text = json.dumps(lanes_document(found), separators=(",", ":"))
    assert len(text) <= MOST_BYTES * 0.75


def test_merging_keeps_every_event_counted_and_the_long_ones_apart() -> None:
    found = many_events(200_000)
    drawn, merged, resolution_us = thinned(found, EVENTS)
    counted = merged.count
    assert len(drawn) <= EVENTS
    assert counted.sum() == len(found)
    assert merged.covered_us.sum() == pytest.approx((found.end_us - found.start_us).sum())
    long_ones = found.end_us - found.start_us >= resolution_us
    assert (counted[drawn.end_us - drawn.start_us >= 1000.0] == 1).all()
    assert np.isin(found.start_us[long_ones], drawn.start_us).all()
    assert (drawn.end_us - drawn.start_us).max() <= max(1000.0, 2 * resolution_us)


def test_the_worst_step_of_real_traces_holds_only_events_of_it(tmp_path: Path) -> None:
    trace = slowest(analyze([two_steps(tmp_path)]))
    assert trace is not None
    first, second = steps_of(trace)
    for step in (first, second):
        found = lanes(trace, step)
        assert (found.end_us > 0).all()
        assert (found.start_us < step.duration_us).all()
        idle = found.lane == 0
        assert (found.end_us - found.start_us)[idle].sum() == pytest.approx(step.idle_us)


@needs_browser
def test_the_page_of_a_comparison_shows_both_steps_and_what_moved(drawn: Draw) -> None:
    found = compared(analysis_of(STEPS[1], burst=2), analysis_of(STEPS[3], burst=6))
    document = drawn(comparison_page(found, ("<first>", "second")))
    assert "data-error" not in document
    assert count(document, r'<svg[^>]*class="bar"') == 2
    assert "−39.2 %" in document
    assert "&lt;first&gt;: wall memory, up to 31.0 %" in document
    assert document.index("recompute</td>") < document.index("idle: host</td>") < document.index("exposed DP</td>")


def test_the_command_writes_the_page_beside_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
