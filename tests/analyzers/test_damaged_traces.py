"""Input that is cut, damaged, empty or something else: read what is whole, say what was lost, never crash."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analyzers import Analysis, TraceError, Wall, analyze
from analyzers.one_rank.breakdown import break_down
from analyzers.readers import chunks, json_events, read
from analyzers.readers.losses import CUT_SHORT
from analyzers.timeline import Timeline
from tests.analyzers.drawing import GEMM, Drawing
from tests.draws import few
from tests.places import TRACES, WITHOUT_SHARED
from tests.rows import filled

TRACE_OF_A_GPU = TRACES / "bert_small_h100.json.gz"


def _many(count: int = 200) -> Drawing:
    drawing = Drawing().step(1, 0, count * 10)
    for k in range(count):
        drawing.kernel(GEMM, k * 10, k * 10 + 6, launched=max(0, k * 10 - 5))
    return drawing


def _read(path: Path) -> Timeline:
    (timeline,) = read(path)
    return timeline


def test_a_cut_file_gives_every_whole_event_and_says_what_is_missing(tmp_path: Path) -> None:
    text = json.dumps(_many().document())
    path = tmp_path / "cut.json"
    path.write_text(text[: len(text) * 2 // 3])
    timeline = _read(path)
    assert 100 < len(timeline.device.spans) < 160
    (lost,) = timeline.dropped
    assert (lost.what, lost.count) == ("events", 1)
    assert "cut short" in lost.why


def test_a_cut_gzip_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(_many(3000).document()).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    timeline = _read(path)
    assert 500 < len(timeline.device.spans) < 3000
    assert any("gzip" in d.why for d in timeline.dropped)
    assert break_down(timeline).report().coverage.dropped == list(timeline.dropped)


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_no_wall_is_named_from_a_trace_whose_end_is_missing(tmp_path: Path, name: str) -> None:
    text = json.dumps(_many(3000).document()).encode()
    whole = gzip.compress(text) if name.endswith("gz") else text
    path = tmp_path / name
    path.write_bytes(whole[: len(whole) // 2])
    analysis = analyze([path])
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    size = f"{path.stat().st_size / 1e6:.1f} MB" if path.stat().st_size >= 1e5 else f"{path.stat().st_size:,} bytes"
    assert analysis.diagnosis.cut_short == f"cut short at {size}"
    assert analysis.diagnosis.because.startswith(f"cut short at {size}: {path}; ")
    assert analysis.traces[0].steps


@pytest.mark.parametrize("name", ["cut.json", "cut.json.gz"])
def test_a_trace_cut_before_its_device_events_is_called_cut_and_not_badly_recorded(tmp_path: Path, name: str) -> None:
    drawing = _many(3000)
    drawing.events.sort(key=lambda event: event["cat"] == "kernel")  # profilers write the device's events last
    text = json.dumps(drawing.document()).encode()
    until = text.index(b'"cat": "kernel"')
    whole = gzip.compress(text[: until // 2]) if name.endswith("gz") else text[: until // 2]
    path = tmp_path / name
    path.write_bytes(whole[:-20] if name.endswith("gz") else whole)
    with pytest.raises(TraceError, match=r"is cut short at .*, before the first event of the device") as caught:
        analyze([path])
    assert "CUPTI" not in str(caught.value)


def _cut_before_its_end(drawing: Drawing, folder: Path) -> Path:
    text = json.dumps(drawing.document())
    path = folder / "cut.json"
    path.write_text(text[: len(text) - 60])
    return path


def _operators(*transfers: str, **header: Any) -> Drawing:
    drawing = Drawing(on_cpu=True).step(1, 0, 1000)
    drawing.header |= header
    for name in transfers:
        drawing.range(name, 6, 9)
    for k in range(100):
        drawing.operator("aten::mm", k * 10, k * 10 + 6)
    return drawing


def test_a_cut_trace_without_a_device_in_its_header_is_of_a_rank_on_cpus(tmp_path: Path) -> None:
    analysis = analyze([_cut_before_its_end(_operators(), tmp_path)])
    assert analysis.traces[0].devices == []
    assert analysis.diagnosis.cut_short


def test_a_cut_trace_that_says_nothing_of_devices_is_of_cpus_where_gloo_alone_was_used(tmp_path: Path) -> None:
    unknown, beside_nccl = (_operators(*names, deviceProperties=None) for names in ((), ("gloo:send", "nccl:send")))
    for drawing in (unknown, beside_nccl):
        with pytest.raises(TraceError, match=r"is cut short at .* nothing before that shows whether the rank computed"):
            analyze([_cut_before_its_end(drawing, tmp_path)])
    known = _operators("gloo:send", deviceProperties=None)
    assert analyze([_cut_before_its_end(known, tmp_path)]).traces[0].devices == []


@pytest.mark.skipif(not TRACE_OF_A_GPU.is_file(), reason=WITHOUT_SHARED)
def test_a_real_trace_of_a_gpu_cut_before_its_kernels_is_not_called_one_of_cpus(tmp_path: Path) -> None:
    text = gzip.decompress(TRACE_OF_A_GPU.read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(text[: text.index(b'"cat": "kernel"') - 200])
    with pytest.raises(TraceError, match=r"is cut short at 0\.9 MB"):
        analyze([path])


def test_a_trace_read_in_many_pieces_is_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _many().write(tmp_path)
    whole = break_down(_read(path)).report()
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)
    assert break_down(_read(path)).report() == whole


def test_one_broken_event_in_the_middle_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _many().write(tmp_path)
    lines = path.read_text().split("\n")
    at = next(i for i, line in enumerate(lines) if i > len(lines) // 2 and '"dur"' in line)
    path.write_text("\n".join([*lines[:at], '"dur": ???,', *lines[at + 1 :]]))
    for size in (chunks.CHUNK_BYTES, 2000):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
        monkeypatch.setattr(json_events, "UNDECODABLE_BYTES", 4 * size)
        timeline = _read(path)
        assert len(timeline.device.spans) + len(timeline.calls) == 399
        assert sum(d.count for d in timeline.dropped) == 1


def test_a_bare_list_of_events_is_a_trace_too_even_without_its_end(tmp_path: Path) -> None:
    events = json.dumps(_many(20).document()["traceEvents"])
    for text in (events, events.removesuffix("]"), events.removesuffix("]") + ",\n"):
        path = tmp_path / "list.json"
        path.write_text(text)
        timeline = _read(path)
        assert len(timeline.device.spans) == 20
        assert timeline.dropped == ()


def test_json_that_is_not_strict_is_read(tmp_path: Path) -> None:
    drawing = _many(5).operator("aten::weird", 0, 5)
    raw = json.dumps(drawing.document()).encode()
    raw = raw.replace(b"aten::weird", b"aten::\xff\xfe\x01weird\t").replace(b'"traceName"', b'"x": NaN, "traceName"')
    path = tmp_path / "loose.json"
    path.write_bytes(raw)
    timeline = _read(path)
    assert len(timeline.device.spans) == 5
    assert len(timeline.ops) == 1


def test_events_without_a_start_or_with_a_negative_duration_are_counted(tmp_path: Path) -> None:
    drawing = _many(5).kernel(GEMM, 60, 50, launched=40)
    del drawing.events[0]["ts"]
    timeline = _read(drawing.write(tmp_path))
    assert [(d.what, d.count) for d in timeline.dropped] == [("events", 2)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.json", b"", "empty"),
        ("binary.json", bytes(range(256)) * 40, "neither a Kineto trace"),
        ("text.txt", b"hello", "neither a Kineto trace"),
        ("other.json", b'{"a": 1}', "neither a Kineto trace"),
        ("broken.json.gz", b"\x1f\x8b" + b"\x00" * 100, "neither a Kineto trace"),
        ("nothing.json", b'{"traceEvents": []}', "has no events"),
        ("opened.json", b'{"schemaVersion": 1, "traceEvents": [', "has no events"),
        ("header.json", b'{"schemaVersion": 1, "deviceProp', "has no events"),
        ("damaged.sqlite", b"SQLite format 3\x00" + b"\x07" * 5000, "damaged SQLite"),
    ],
)
def test_what_is_no_trace_is_refused_with_what_to_do(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as raised:
        analyze([path])
    assert raised.value.path == path
    assert raised.value.hint


def test_a_path_that_does_not_exist_and_a_folder_without_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        analyze([tmp_path / "none"])
    with pytest.raises(TraceError, match="has no traces"):
        analyze([tmp_path])


def test_a_hole_of_zeros_is_reported_and_no_wall_is_named_across_it(tmp_path: Path) -> None:
    raw = _many(3000).write(tmp_path).read_bytes()
    path = tmp_path / "hole.json"
    path.write_bytes(raw[:200_000] + bytes(4096) + raw[204_096:])
    analysis = analyze([path])
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert any("zeros" in lost.why for lost in analysis.traces[0].coverage.dropped)


def _with_hard_ends() -> bytes:
    """Returns a trace that a cut can end inside an escape, a character of several bytes, a number or nested
    brackets."""
    drawing = _many(4)
    drawing.events[-1]["args"] |= {"dims": [[1, 2.5e3], [{}]], "text": 'a"\\}, {\u00e9\U0001f600', "none": None}
    return json.dumps(drawing.document(), ensure_ascii=False).encode()


def test_cut_at_any_byte_no_wall_is_named_and_no_event_is_invented(tmp_path: Path) -> None:
    raw = _with_hard_ends()
    complete = raw.rindex(b"]", 0, raw.index(b'"traceName"')) + 1
    read = list(_cuts_that_are_read(raw, range(raw.rindex(b"cudaLaunchKernel"), complete), tmp_path / "cut.json"))
    for analysis in filled(read):
        (trace,) = analysis.traces
        assert analysis.diagnosis.wall is Wall.UNDETERMINED
        assert trace.coverage.kernels <= 4
        # an event with what looks like a boundary in a text counts as two
        assert sum(lost.count for lost in trace.coverage.dropped) in (1, 2)


def _cuts_that_are_read(raw: bytes, lengths: Iterable[int], path: Path) -> Iterator[Analysis]:
    for length in lengths:
        path.write_bytes(raw[:length])
        with contextlib.suppress(TraceError):
            yield analyze([path])


def test_gzip_cut_at_any_byte_names_no_wall(tmp_path: Path) -> None:
    raw = gzip.compress(_with_hard_ends())
    for analysis in filled(_cuts_that_are_read(raw, range(1, len(raw)), tmp_path / "cut.json.gz")):
        assert analysis.diagnosis.wall is Wall.UNDETERMINED


def test_gzip_that_is_damaged_inside_names_no_wall(tmp_path: Path) -> None:
    raw = bytearray(gzip.compress(json.dumps(_many(3000).document()).encode()))
    raw[len(raw) // 2] ^= 0x55
    path = tmp_path / "damaged.json.gz"
    path.write_bytes(bytes(raw))
    analysis = analyze([path])
    assert analysis.diagnosis.wall is Wall.UNDETERMINED
    assert any("gzip" in lost.why for lost in analysis.traces[0].coverage.dropped)


OPENED = b'{"schemaVersion": 1, "traceEvents": [' + json.dumps(_many(1).events[-1]).encode() + b","
HOSTILE = {
    "no events": b'{"schemaVersion": 1, "x": "' + b"y" * 40_000,
    "one endless text": OPENED + b'{"name": "' + b"z" * 40_000,
    "backslashes": OPENED + b'{"name": "' + b"\\" * 40_000,
    "open braces": OPENED + b"{" * 40_000,
    "open lists": OPENED + b"[" * 40_000,
    "only boundaries": OPENED + b"},{" * 13_000,
    "boundaries in a text": OPENED + b'{"name": "' + b"}, {" * 10_000,
    "wrong types": OPENED + b'{"ph": "X", "name": 5},\n' * 2_000,
    "spaces": OPENED + b"}" + b" " * 40_000,
    "commas": OPENED + b"{" + b", " * 20_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_input_is_decoded_over_and_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A retry reads at least twice as much, so that all tries together are a few times the file and not its square."""
    path = tmp_path / "hostile.json"
    path.write_bytes(HOSTILE[what])
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 500)
    monkeypatch.setattr(json_events, "UNDECODABLE_BYTES", 8_000)
    seen = 0

    def counted(text: bytes) -> bytes:
        nonlocal seen
        seen += len(text)
        return text

    monkeypatch.setattr(json_events, "repaired", counted)
    with contextlib.suppress(TraceError):
        analyze([path])
    assert seen < 12 * len(HOSTILE[what])


ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    1.5,
    1e308,
    10**30,
    2**63,
    "",
    "x",
    "nan",
    "\ud800",
    [],
    {},
    [[[]]],
    "9" * 400,
)


def _damaged(chance: random.Random, raw: bytes) -> bytes:
    """Returns the bytes after a few random changes: bytes changed, cut off, left out, inserted or repeated, lines
    exchanged."""
    text = bytearray(raw)
    for _ in range(chance.randint(1, 5)):
        at, other, length = chance.randrange(len(text) + 1), chance.randrange(len(text) + 1), chance.randint(1, 300)
        lines = bytes(text).split(b"\n")
        i, k = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[i], lines[k] = lines[k], lines[i]
        text = chance.choice(
            (
                text[:at] + bytes([chance.randrange(256)]) + text[at + 1 :],
                text[:at],
                text[:at] + text[at + length :],
                text[:at] + chance.randbytes(length) + text[at:],
                text[:at] + chance.choice((b"}", b"{", b"]", b"[", b'"', b",", b"\\", b"}, {")) + text[at:],
                text[:at] + text[other : other + length] + text[at:],
                bytearray(b"\n").join(lines),
            )
        )
    return bytes(text)


def _with_odd_values(chance: random.Random) -> bytes:
    document = _many(30).document()
    parts = [
        document,
        document["distributedInfo"],
        *document["traceEvents"],
        *(e["args"] for e in document["traceEvents"]),
    ]
    for _ in range(chance.randint(0, 6)):
        inside = chance.choice(parts) if chance.random() < 0.7 else chance.choice(parts[:2])
        inside[chance.choice([*inside, "new"])] = chance.choice(ODD)
    return json.dumps(document, indent=chance.choice((None, 1))).encode()


@pytest.mark.parametrize("seed", few(range(2), 1))
def test_random_damage_never_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "fuzzed.json"
    for _ in range(120):
        raw = _with_odd_values(chance)
        raw = _damaged(chance, raw) if chance.random() < 0.7 else raw
        if chance.random() < 0.3:
            raw = gzip.compress(raw)
            raw = _damaged(chance, raw) if chance.random() < 0.6 else raw
        path.write_bytes(raw)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chance.choice((200, 3000, 1 << 20)))
        monkeypatch.setattr(json_events, "UNDECODABLE_BYTES", chance.choice((2000, 16 << 20)))
        with contextlib.suppress(TraceError):
            analysis = analyze([path])
            assert msgspec.json.encode(analysis)
            missing = any(lost.why in CUT_SHORT for lost in analysis.traces[0].coverage.dropped)
            assert not missing or analysis.diagnosis.wall is Wall.UNDETERMINED


@pytest.mark.parametrize("between", ["", "\n"])
def test_two_traces_in_one_file_are_refused(tmp_path: Path, between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(_many().document())
    path = tmp_path / "two.json"
    path.write_text(f"{text}{between}{text}")
    for size in (64, 1 << 20):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
        with pytest.raises(TraceError, match="more than one trace"):
            read(path)


def test_times_that_have_no_microseconds_left_are_refused(tmp_path: Path) -> None:
    document = _many().document()
    for event in document["traceEvents"]:
        if "ts" in event:
            event["ts"] = float(event["ts"]) + 9e17
    path = tmp_path / "late.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match="beyond 1e16"):
        read(path)
