"""The timeline view: the events of one step as columns in the page, few enough to keep the page small.

If a step has more events than `EVENTS`, those shorter than a pixel at the largest zoom are merged with their
neighbours, and the zoom is limited to that resolution. lanes.js draws them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from analyzers.lanes import KEYS, Lanes
from analyzers.timeline import Ints
from autotune.looks.kernel_names import short_name
from autotune.looks.segments import KINDS, words_of
from autotune.looks.stacks import Piece, legend

EVENTS = 40_000  # most events in the page; about 20 bytes each
NAMES = 2_000  # most names in the page: those with the most time
NAME_CHARACTERS = 120
LANES = 24  # most lanes: idle time, and the busiest streams and threads
FINEST = 2.0**-20  # fraction of the step: the first resolution tried
SPECIAL_WORDS = {
    "copy": "copies",
    "host.range": "host: range",
    "host.operator": "host: operator",
    "host.call": "host: CUDA call",
    "compute.recompute": "recompute",
}


def lanes_json(found: Lanes) -> Markup:
    """Returns the document for lanes.js as JSON that is safe inside a script element."""
    return safe_json(lanes_document(found))


def safe_json(document: Any) -> Markup:
    """Returns JSON that is safe inside a script element, whatever it contains."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # a name may hold </script> or <!--, and the two separators end a line in old JavaScript
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def lanes_document(found: Lanes, most: int = EVENTS) -> dict[str, Any]:
    """Returns the document for lanes.js; times are nanoseconds.

    Starts and launches are stored as differences from the previous event. The launch of a device event is the index of
    the call that launched it, in the rows' order, or -1.
    """
    kept = _first_lanes(found)
    drawn, count, resolution_us = thinned(kept, most)
    names, name = _names(drawn, min(NAMES, most))
    keys, key = np.unique(drawn.key, return_inverse=True)
    return {
        "duration": round(drawn.duration_us * 1000),
        "resolution": round(resolution_us * 1000),
        "left_out": len(found.lanes) - len(kept.lanes),
        "lanes": [{"place": lane.place, "label": lane.label} for lane in drawn.lanes],
        "names": names,
        "keys": [
            {"words": key_words(KEYS[code]), "colour": f"--{_colour(KEYS[code])}".replace("_", "-")}
            for code in keys.tolist()
        ],
        "rows": list(_rows(drawn, name, key, count)),
    }


def lanes_legend(found: Lanes) -> Markup:
    """Draws the legend of the lanes: a swatch for each kind of event."""
    return legend(
        Piece(key=_colour(KEYS[code]), words=key_words(KEYS[code]), value=1.0, text="")
        for code in np.unique(found.key).tolist()
    )


def key_words(key: str) -> str:
    """Returns `grouped GEMM`, `EP dispatch`, `idle: host`."""
    if key in SPECIAL_WORDS:
        return SPECIAL_WORDS[key]
    family, _, name = key.partition(".")
    if family == "compute":
        return words_of(name)
    return next(kind.activity or kind.words for kind in KINDS if kind.key == name)


def _colour(key: str) -> str:
    """Returns the colour's name in page.css, the same as in the step bars if those have this kind."""
    family, _, name = key.partition(".")
    if family == "compute" and name != "recompute":
        return f"c-{name}"
    return f"h-{name}" if family == "host" else name or family


def thinned(found: Lanes, most: int) -> tuple[Lanes, Ints, float]:
    """Returns at most `most` events, the number of recorded events in each (int64[N]), and the resolution that merged
    them (µs; 0: none)."""
    count = np.ones(len(found), dtype=np.int64)
    resolution, drawn = 0.0, found
    while len(drawn) > most:
        resolution = 2 * resolution or FINEST * found.duration_us
        drawn, count = _merged(found, resolution)
    return drawn, count, resolution


def _merged(found: Lanes, resolution_us: float) -> tuple[Lanes, Ints]:
    """Merges short neighbours of a row that start in one cell of time; the longest gives the name."""
    took = found.end_us - found.start_us
    cell = np.floor(found.start_us / resolution_us)
    short = took < resolution_us
    same = np.ones(len(found) - 1, dtype=bool)
    for column in (found.lane, found.row, cell):
        same &= column[1:] == column[:-1]
    begins = np.flatnonzero(np.concatenate(([True], ~(same & short[1:] & short[:-1]))))
    count = np.diff(np.append(begins, len(found)))
    group = np.repeat(np.arange(len(begins)), count)
    longest = np.lexsort((took, group))[np.cumsum(count) - 1]
    columns = {
        "start_us": found.start_us[begins],
        "end_us": np.maximum.reduceat(found.end_us, begins),
        "lane": found.lane[begins],
        "row": found.row[begins],
        "name": found.name[longest],
        "key": found.key[longest],
        "launch": None if found.launch is None else _renumbered(found.launch[longest], group),
        "covered_us": np.add.reduceat(took, begins),
    }
    return replace(found, **columns), count


def _renumbered(launch: Ints, place: Ints) -> Ints:
    """Maps launches to new indices. place: int64, the new index of each old event, -1 if it was removed."""
    return np.where(launch >= 0, np.append(place, -1)[launch], -1)


def too_many(found: Lanes) -> bool:
    """Returns True if some events are merged with their neighbours."""
    return len(found) > EVENTS


def _first_lanes(found: Lanes) -> Lanes:
    """Returns at most LANES lanes: the busiest of each place (idle time, device, host), then the second busiest, and so
    on."""
    if len(found.lanes) <= LANES:
        return found
    places = [lane.place for lane in found.lanes]
    order = sorted(range(len(places)), key=lambda at: (sum(place is places[at] for place in places[:at]), at))
    chosen = sorted(order[:LANES])
    renumbered = np.full(len(places), -1)
    renumbered[chosen] = np.arange(len(chosen))
    kept = np.isin(found.lane, chosen)
    columns = {c: getattr(found, c)[kept] for c in ("start_us", "end_us", "row", "name", "key")}
    if found.launch is not None:
        place = np.where(kept, np.cumsum(kept) - 1, -1)
        columns["launch"] = _renumbered(found.launch[kept], place)
    lane = renumbered[found.lane[kept]]
    return replace(found, lanes=tuple(found.lanes[at] for at in chosen), lane=lane, **columns)


def _names(drawn: Lanes, most: int) -> tuple[list[str], Ints]:
    """Returns the names for the page, and the index of each event's name in them (int64[N]); the names with the least
    time share the last one."""
    time = np.bincount(drawn.name, weights=drawn.end_us - drawn.start_us, minlength=len(drawn.names))
    used = np.unique(drawn.name)
    kept = used[np.lexsort((used, -time[used]))][:most]
    position = np.full(len(drawn.names), len(kept))
    position[kept] = np.arange(len(kept))
    names = [_name_words(drawn.names[code]) for code in kept.tolist()]
    return [*names, *(["(one of the many other names)"] if len(kept) < len(used) else [])], position[drawn.name]


def _name_words(name: str) -> str:
    activity = name.removeprefix("host: ")
    return f"host: {words_of(activity)}" if activity != name else short_name(name, NAME_CHARACTERS)


def _rows(drawn: Lanes, name: Ints, key: Ints, count: Ints) -> Iterator[dict[str, Any]]:
    place = drawn.lane * (int(drawn.row.max(initial=0)) + 1) + drawn.row
    start, end = (np.rint(column * 1000).astype(np.int64) for column in (drawn.start_us, drawn.end_us))
    covered = end - start if drawn.covered_us is None else np.rint(drawn.covered_us * 1000).astype(np.int64)
    for here in np.split(np.arange(len(drawn)), np.flatnonzero(np.diff(place)) + 1):
        if len(here):
            several = (count[here] > 1).any()
            launch = np.full(len(here), -1) if drawn.launch is None else drawn.launch[here]
            columns = {
                "start": np.diff(start[here], prepend=0),
                "took": (end - start)[here],
                "name": name[here],
                "key": key[here],
                "count": count[here] if several else np.empty(0),
                "covered": covered[here] if several else np.empty(0),
                "launch": np.diff(launch, prepend=0) if (launch >= 0).any() else np.empty(0),
            }
            first = {"lane": int(drawn.lane[here[0]]), "row": int(drawn.row[here[0]])}
            yield first | {what: column.tolist() for what, column in columns.items()}
