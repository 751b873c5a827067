"""The lanes of a step on the page of `diagnose`: what they hold, and how a browser draws, zooms and searches them."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzers import analyze
from analyzers.lanes import Lane, Lanes, Place, diagnosed, lanes_of
from autotune.diagnose.lanes import EVENTS, lanes_document, thinned
from autotune.diagnose.page import diagnosis_page
from autotune.diagnose.views import drawn_steps
from autotune.looks.segments import slowest, steps_of
from tests.analyzers.drawing import ALL_TO_ALL, GEMM, GLOO_THREAD, Drawing
from tests.autotune.diagnose.drawn_page import MAX_BYTES, Draw, scripted, two_steps
from tests.autotune.looks.browser import document_of, needs_browser


def on_cpu(folder: Path) -> Path:
    drawing = Drawing(on_cpu=True).step(1, 0, 1000)
    drawing.operator("aten::mm", 10, 400).range("gloo:all_to_all", 400, 900, thread=GLOO_THREAD)
    return drawing.write(folder)


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="lanes-data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_worst_step_is_in_the_page_with_its_streams_and_threads(tmp_path: Path) -> None:
    data = data_of(diagnosis_page(analyze([two_steps(tmp_path)]), "drawn"))
    assert data["duration"] == 2_000_000
    labels = [lane["label"] for lane in data["lanes"]]
    assert labels == ["idle by cause", "stream 7", "stream 8", "thread 100"]
    names = data["names"]
    assert {GEMM, "ncclDevKernel_SendRecv", "aten::mm"} <= set(names)


def test_a_rank_on_cpus_shows_its_threads(tmp_path: Path) -> None:
    data = data_of(diagnosis_page(analyze([on_cpu(tmp_path)]), "drawn"))
    words = {key["words"] for key in data["keys"]}
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
    """Returns a script that writes on the page how much of a row of pixels is coloured: nothing else is drawn there."""
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


def many_events(number: int, *, names: int = 50) -> Lanes:
    """Returns events without a gap in three lanes, every thousandth of 1 ms and the others of 1 µs; names are long."""
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
    assert len(text) <= MAX_BYTES * 0.75


def test_merging_keeps_every_event_counted_and_the_long_ones_apart() -> None:
    found = many_events(200_000)
    drawn, counted, resolution_us = thinned(found, EVENTS)
    assert len(drawn) <= EVENTS
    assert counted.sum() == len(found)
    assert drawn.covered_us is not None
    assert drawn.covered_us.sum() == pytest.approx((found.end_us - found.start_us).sum())
    long_ones = found.end_us - found.start_us >= resolution_us
    assert (counted[drawn.end_us - drawn.start_us >= 1000.0] == 1).all()
    assert np.isin(found.start_us[long_ones], drawn.start_us).all()
    assert (drawn.end_us - drawn.start_us).max() <= max(1000.0, 2 * resolution_us)


def test_the_lanes_of_a_step_hold_only_its_events(tmp_path: Path) -> None:
    trace = slowest(analyze([two_steps(tmp_path)]))
    assert trace is not None
    first, second = steps_of(trace)
    for step in (first, second):
        found = lanes_of(diagnosed(trace), start_us=step.start_us, end_us=step.end_us)
        assert (found.end_us > 0).all()
        assert (found.start_us < step.duration_us).all()
        idle = found.lane == 0
        assert (found.end_us - found.start_us)[idle].sum() == pytest.approx(step.idle_us)


@needs_browser
def test_an_event_is_found_by_its_name_and_shows_an_arrow_from_its_launch(tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    asked = """
      const find = document.getElementById("lanes-find");
      find.value = "SGEMM";
      find.dispatchEvent(new Event("input"));
      find.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    """
    document = drawn(scripted(page, asked))
    assert "data-error" not in document
    assert 'data-lanes-found="1"' in document
    said = re.findall(r'<output id="lanes-said"[^>]*>([^<]*)<', document)[0]
    assert said.startswith(f"1 of 1: {GEMM}, dense GEMM · stream 7, at 100 µs, for 900 µs")
    assert "launched 90 µs earlier by cudaLaunchKernel" in said
    assert "data-lanes-arrow" in document
    back = asked + 'document.getElementById("lanes-canvas").dispatchEvent(new KeyboardEvent("keydown", { key: "l" }));'
    assert f"launches {GEMM}, which starts 90 µs later" in drawn(scripted(page, back))


@needs_browser
def test_the_sums_of_a_selected_stretch_are_those_of_its_events(tmp_path: Path, drawn: Draw) -> None:
    page = diagnosis_page(analyze([two_steps(tmp_path)]), "drawn")
    document = drawn(scripted(page, "lanes.select(1000000, 1900000);"))
    (sums,) = re.findall(r'<div id="lanes-sums"(.*?)</div></div>', document, re.DOTALL)
    rows = [re.findall(r"<t[dh][^>]*>(?:<button[^>]*>)?([^<]*)", row) for row in re.findall(r"<tr>(.*?)</tr>", sums)]
    assert ["stream 8", "other communication", "800 µs", "88.9 %", "1"] in rows
    assert ["idle by cause", "idle: host", "100 µs", "11.1 %", "1"] in rows
    assert ["stream 8", "ncclDevKernel_SendRecv", "800 µs", "88.9 %", "1"] in rows
    assert "Selected: 900 µs, from 1 ms to 1.9 ms" in sums


@needs_browser
def test_every_step_of_every_rank_can_be_shown(tmp_path: Path) -> None:
    for rank in (0, 1):
        drawing = Drawing(rank=rank)
        for number in (1, 2):
            at = number * 1000.0
            drawing.step(number, at, at + 1000).kernel(GEMM, at + 100, at + 300 * (rank + 1), launched=at + 10)
            drawing.kernel(ALL_TO_ALL, at + 300 * (rank + 1), at + 900, launched=at + 20, stream=8)
        drawing.write(tmp_path)
    page = diagnosis_page(analyze([tmp_path]), "drawn")
    shown = scripted(
        page,
        """
      const rank = document.getElementById("lanes-rank"), step = document.getElementById("lanes-step");
      document.documentElement.dataset.menus = [rank, step].map((one) => [...one.options].map((o) => o.text).join("|"));
      const other = 1 - Number(rank.value);
      rank.value = other;
      rank.dispatchEvent(new Event("change"));
      setTimeout(() => {
        const rows = lanes.state.data.rows, names = lanes.state.data.names;
        const took = (row) => row.took.filter((_, at) => names[row.name[at]] === "GEMM_NAME");
        document.documentElement.dataset.shown = `${rank.options[other].text}: ${rows.flatMap(took)}`;
      }, 500);
    """.replace("GEMM_NAME", GEMM),
    )
    (tmp_path / "page.html").write_text(shown, encoding="utf-8")
    document = document_of(tmp_path / "page.html", tmp_path / "profile", wait_ms=3000)
    assert "data-error" not in document
    assert 'data-menus="rank 0|rank 1,ProfilerStep#1, 1.00 ms|ProfilerStep#2, 1.00 ms"' in document
    assert re.search(r'data-shown="(rank 0: 200000|rank 1: 500000)"', document)


def test_packed_views_stay_within_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.diagnose.views.MAX_BYTES", 3000)
    drawing = Drawing(world_size=1)
    for number in range(40):
        drawing.step(number, number * 1000, number * 1000 + 1000)
        drawing.kernel(GEMM, number * 1000 + 100, number * 1000 + 600, launched=number * 1000 + 10)
    analysis = analyze([drawing.write(tmp_path)])
    (trace,) = analysis.traces
    found = drawn_steps(analysis, trace, trace.steps[0])
    views = found[0].views
    assert 0 < len(views) < 39
    assert sum(map(len, views.values())) <= 3000
    unpacked = json.loads(zlib.decompress(base64.b64decode(views[1])))
    assert unpacked["duration"] == 1_000_000
    assert GEMM in unpacked["names"]
