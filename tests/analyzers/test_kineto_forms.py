"""Every form a Kineto trace is written in, by age of torch, tool and clock: the same events, the same answer."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analyzers import TraceError, analyze
from analyzers.diagnosis import TraceReport
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import chunks, read
from analyzers.readers.json_repair import repaired
from tests.analyzers.drawing import ALL_TO_ALL, DISPATCH, GEMM, Drawing
from tests.analyzers.taken_apart import report_of


def _drawn(rank: int = 0) -> Drawing:
    """Draws two steps with compute, communication that is half hidden, a copy, and host idle time."""
    drawing = Drawing(rank=rank)
    for step in (1, 2):
        at = 1000.0 * step
        drawing.step(step, at, at + 1000)
        drawing.operator("aten::mm", at, at + 40).range("dispatch", at + 40, at + 200)
        drawing.kernel(GEMM, at + 100, at + 300, launched=at + 10)
        drawing.kernel(DISPATCH, at + 200, at + 500, launched=at + 60, stream=8)
        drawing.copy("Memcpy HtoD", at + 550, at + 600, launched=at + 520)
    return drawing


def _figures(report: TraceReport) -> bytes:
    """Returns the partitions, with times from the first event on and without digits beyond the clock's precision."""
    rounded = json.loads(msgspec.json.encode([report.span, *report.steps]), parse_float=lambda text: round(float(text)))
    return json.dumps(rounded, sort_keys=True).encode()


def _same_as_drawn(path: Path) -> TraceReport:
    report = report_of(path)
    expected = report_of(_drawn().write(path.parent, "expected.json"))
    assert _figures(report) == _figures(expected)
    return report


def _write(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document = _drawn().document()
    for event in document["traceEvents"]:
        change(event)
    path = folder / "changed.json"
    path.write_text(json.dumps(document))
    return path


OLD_CATEGORIES = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy"}


def test_capitalised_categories_with_devices_as_processes_are_read(tmp_path: Path) -> None:
    def old(event: dict[str, Any]) -> None:
        category = event["cat"]
        if event["name"].startswith("ProfilerStep"):
            category = "cpu_op"
        event["cat"] = OLD_CATEGORIES.get(category, category)
        if "device" in event["args"]:
            event["pid"] = event["args"].pop("device")

    assert _same_as_drawn(_write(tmp_path, old)).devices == [0]


@pytest.mark.parametrize("flow", ["ac2g", "async_cpu_to_gpu", "fwdbwd", "Async"])
def test_flow_events_of_any_age_change_nothing(tmp_path: Path, flow: str) -> None:
    drawing = _drawn()
    for k, event in enumerate(list(drawing.events)):
        for phase in ("s", "f"):
            drawing.events.append({**event, "ph": phase, "cat": flow, "id": k, "name": flow, "bp": "e"})
    _same_as_drawn(drawing.write(tmp_path))


def test_times_may_be_text_and_durations_too(tmp_path: Path) -> None:
    def as_text(event: dict[str, Any]) -> None:
        event.update(ts=str(event["ts"]), dur=str(event["dur"]), pid=str(event["pid"]))

    _same_as_drawn(_write(tmp_path, as_text))


@pytest.mark.parametrize("base_ns", [0, 1_712_000_000_000_000_000])
def test_a_clock_of_nanoseconds_is_read_as_microseconds_with_digits(tmp_path: Path, base_ns: int) -> None:
    document = _drawn().document() | {"baseTimeNanoseconds": base_ns, "displayTimeUnit": "ms"}
    for event in document["traceEvents"]:
        event["ts"] += 4458676522709.059
    path = tmp_path / "ns.json"
    path.write_text(json.dumps(document))
    _same_as_drawn(path)
    (timeline,) = read(path)
    assert timeline.origin_us == pytest.approx(1000 + 4458676522709.059 + base_ns / 1000, abs=1)


def test_nanoseconds_since_1970_are_kept_to_a_quarter_of_a_microsecond(tmp_path: Path) -> None:
    """A float64 keeps each edge of an event within 0.125 us, and sums within far less than 0.1 %."""
    chance = random.Random(3)
    drawing, at, ran = Drawing(), 0.0, 0.0
    for _ in range(2000):
        took, gap = chance.uniform(2, 9), chance.uniform(0.6, 5)
        drawing.kernel(GEMM, at, at + took)
        at, ran = at + took + gap, ran + took
    document = drawing.document()
    for event in document["traceEvents"]:
        event["ts"] = f"{1712195495519695 + int(event['ts'])}.{int(event['ts'] % 1 * 1000):03d}"
    text = json.dumps(document)
    for written in (text, text.replace('"ts": "', '"ts": ').replace('", "dur"', ', "dur"')):
        path = tmp_path / "since1970.json"
        path.write_text(written)
        span = report_of(path).span
        assert span.busy_us == pytest.approx(ran, rel=1e-3)
        assert span.idle_us == pytest.approx(span.duration_us - ran, rel=1e-3)


def test_events_in_any_order_give_the_same_answer_to_the_last_digit(tmp_path: Path) -> None:
    drawing = _drawn().kernel(ALL_TO_ALL, 2700, 2800, launched=2650)
    drawing.events[-1]["args"]["Process Group Description"] = "dp"
    expected = analyze([drawing.write(tmp_path, "trace.json")])
    chance = random.Random(5)
    for _ in range(5):
        chance.shuffle(drawing.events)
        assert analyze([drawing.write(tmp_path, "trace.json")]) == expected


def test_begin_and_end_events_are_paired_by_thread_and_nesting(tmp_path: Path) -> None:
    drawing = _drawn()
    halves = []
    for event in drawing.events:
        begin = {**event, "ph": "B"}
        end = {"ph": "E", "pid": event["pid"], "tid": event["tid"]}
        halves += [begin, {**end, "ts": event["ts"] + begin.pop("dur")}]
    drawing.events = sorted(halves, key=lambda half: float(half["ts"]))
    report = _same_as_drawn(drawing.write(tmp_path))
    assert report.coverage.dropped == []
    drawing.events.append({**drawing.events[0], "ts": 9000})
    (lost,) = report_of(drawing.write(tmp_path)).coverage.dropped
    assert (lost.what, lost.count) == ("events", 1)
    assert "never ended" in lost.why


def test_an_event_without_a_duration_is_counted_as_lost(tmp_path: Path) -> None:
    drawing = _drawn().kernel(GEMM, 2900, 2950).kernel(GEMM, 2950, 2960)
    del drawing.events[-1]["dur"]
    drawing.events[-2]["dur"] = None
    (lost,) = _same_as_drawn(drawing.write(tmp_path)).coverage.dropped
    assert (lost.what, lost.count) == ("events", 2)


def test_of_keys_that_stand_twice_the_last_counts(tmp_path: Path) -> None:
    path = _drawn().write(tmp_path)
    path.write_text(path.read_text().replace('"ph": "X"', '"ph": "i", "ts": 5, "ph": "X"'))
    _same_as_drawn(path)


LOOSE: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "trailing commas": lambda raw: raw.replace(b"}", b",}").replace(b"]", b" ,\n]"),
    "no numbers": lambda raw: raw.replace(b'"args": {', b'"args": {"a": NaN, "b": -Infinity, "c": [inf, nan], '),
    "a single big integer": lambda raw: raw.replace(b'"args": {', b'"args": {"a": 123456789012345678901234567890, ', 1),
    "raw control characters": lambda raw: raw.replace(b"aten::mm", b"aten::mm\x00\x1b[0m\x7f"),
    "invalid UTF-8": lambda raw: raw.replace(b"aten::mm", b"aten::mm\xff\xc3("),
    "half a surrogate pair": lambda raw: raw.replace(b"aten::mm", rb"aten::mm\ud800 \udc00 \ud83d\ude00"),
    "escapes that are none": lambda raw: raw.replace(b"aten::mm", rb"aten::mm C:\q\\ \u12"),
    "padding": lambda raw: raw + b"\0" * 100,
    "no brace at the end": lambda raw: raw.rstrip().removesuffix(b"}"),
    "deep nesting": lambda raw: raw.replace(b'"traceName"', b'"x": ' + b"[" * 400 + b"]" * 400 + b', "traceName"'),
    "a header after the events": lambda raw: raw.replace(b'"traceName"', b'"stackFrames": {"1": {}}, "traceName"'),
}


@pytest.mark.parametrize("chunk_bytes", [chunks.CHUNK_BYTES, 700])
@pytest.mark.parametrize("form", LOOSE)
def test_json_that_is_not_strict_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    path = _drawn().write(tmp_path)
    path.write_bytes(LOOSE[form](path.read_bytes()))
    report = _same_as_drawn(path)
    assert (report.rank, report.coverage.dropped) == (0, [])


def test_repairing_leaves_good_text_alone() -> None:
    text = json.dumps(
        _drawn().document() | {"names": ["a\\b", "é", "\U0001f600", "tab\t", "[1,]"[:3], "NaNs"]}
    ).encode()
    assert json.loads(repaired(text)) == json.loads(text)


def test_a_header_with_odd_fields_costs_only_these(tmp_path: Path) -> None:
    document = _drawn(rank=3).document()
    document["distributedInfo"]["pg_config"] = [["not", "a", "group"]]
    document |= {"deviceProperties": "none", "baseTimeNanoseconds": "x"}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document))
    report = _same_as_drawn(path)
    assert (report.rank, report.coverage.dropped) == (3, [])


ODD_VALUES: list[Any] = [None, True, -1, 1.5, 1e308, 10**30, -(2**63) - 1, "", "x", "nan", "\ud800", [], {}, [{"a": 1}]]


@pytest.mark.parametrize("key", ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "correlation", "device"])
def test_one_event_with_an_odd_value_does_not_hurt_the_others(tmp_path: Path, key: str) -> None:
    for value in ODD_VALUES:
        drawing = _drawn().kernel(GEMM, 2700, 2800)
        event = drawing.events[-1]
        (event if key in event else event["args"])[key] = value
        # an event that names another device belongs to another timeline
        reports = [break_down(timeline).report() for timeline in read(drawing.write(tmp_path))]
        report = max(reports, key=lambda one: one.coverage.kernels)
        assert report.coverage.kernels in (4, 5)
        assert [step.name for step in report.steps] == ["ProfilerStep#1", "ProfilerStep#2"]
        msgspec.json.encode(report)


def test_a_list_of_the_header_that_follows_the_events_holds_no_events(tmp_path: Path) -> None:
    document = _drawn().document()
    document["deviceProperties"] = [{"id": 1}, {"id": 0, "totalGlobalMem": 80 << 30}]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": document.pop("traceEvents"), **document}))
    (timeline,) = read(path)
    assert (timeline.memory_limit_bytes, timeline.rank, timeline.dropped) == (80 << 30, 0, ())


def test_gzip_in_several_members_is_one_trace(tmp_path: Path) -> None:
    raw = _drawn().write(tmp_path).read_bytes()
    path = tmp_path / "members.json.gz"
    path.write_bytes(b"".join(gzip.compress(raw[i : i + 500]) for i in range(0, len(raw), 500)) + b"\0" * 9)
    assert _same_as_drawn(path).coverage.dropped == []


def test_ranks_need_not_start_at_zero_and_a_folder_is_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for rank in (12, 5):
        path = _drawn(rank).write(folder)
        (folder / f"r{rank}.json.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    analysis = analyze([folder])
    assert [trace.rank for trace in analysis.traces] == [5, 12]
    assert analyze([folder / "r12.json.gz"]).traces[0].rank == 12


def test_kernels_of_a_graph_share_its_launch_and_nobody_is_accused_of_the_gaps_between(tmp_path: Path) -> None:
    for call in ("cudaGraphLaunch", "hipGraphLaunch"):
        drawing = Drawing().step(1, 0, 400).call(call, 0, 10, correlation=77)
        for k in range(4):
            drawing.kernel(GEMM, 20 + 90 * k, 80 + 90 * k)
            drawing.events[-1]["args"]["correlation"] = 77
        step = report_of(drawing.write(tmp_path)).steps[0]
        assert step.compute_us == 240
        assert step.idle_by_cause.host_us <= 20 + 50  # before the graph and after it, never between its kernels


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + b"\0" * 50, "unzip"),
        (b"\x28\xb5\x2f\xfd" + b"\0" * 50, "zstd -d"),
        (b"BZh91AY", "bunzip2"),
        (b"\xfd7zXZ\x00\x00", "unxz"),
    ],
)
def test_other_compressed_files_are_refused_with_how_to_unpack_them(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="other than gzip") as raised:
        analyze([path])
    assert says in raised.value.hint


def test_a_folder_or_a_pipe_given_as_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="Is a directory"):
        read(tmp_path)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="is a pipe"):
        analyze([pipe])
