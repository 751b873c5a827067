"""Input that is cut, damaged, empty or something else: read what is whole, say what was lost, never crash."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from pathlib import Path

import pytest

from analyzers import TraceError, Wall, analyze
from analyzers.breakdown import break_down
from analyzers.readers import chunks, json_events, read
from analyzers.timeline import Timeline
from tests.analyzers.drawing import GEMM, Drawing


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
    assert "is cut short" in analysis.diagnosis.because
    assert analysis.traces[0].steps


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
        ("nothing.json", b'{"traceEvents": []}', "holds no events"),
        ("opened.json", b'{"schemaVersion": 1, "traceEvents": [', "holds no events"),
        ("header.json", b'{"schemaVersion": 1, "deviceProp', "holds no events"),
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
    with pytest.raises(TraceError, match="holds no traces"):
        analyze([tmp_path])


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    chance = random.Random(7)
    raw = json.dumps(_many(30).document()).encode()
    path = tmp_path / "fuzzed.json"
    for _ in range(150):
        damaged = bytearray(raw)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged[: chance.randint(1, len(damaged))]))
        with contextlib.suppress(TraceError):
            assert analyze([path]).traces
