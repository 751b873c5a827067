"""Diagnoses a hang by torch's flight recorder: the collective, the ranks that wait in it and those that did not join.

Each rank writes `ranks/rank<r>.flight.json` on request (see `injected`): its last collectives over all process groups,
the newest last. The format is version 2.10 of torch 2.13's FlightRecorder, the same for NCCL and gloo.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

MAX_SHOWN = 4  # most ranks and groups that are named
Group = tuple[str, str]  # torch's name of a process group and its description


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the flight recorder.

    `collective_seq_id` counts within the group. NCCL sets `state` to completed; gloo only sets `retired`.
    """

    process_group: tuple[str, str] = ("", "")
    profiling_name: str = ""
    collective_seq_id: int = 0
    is_p2p: bool = False
    state: str = ""
    retired: bool = False

    @property
    def waits(self) -> bool:
        return not self.retired and self.state != "completed"

    @property
    def name(self) -> str:
        return self.profiling_name.rpartition(":")[2]


class _Members(msgspec.Struct, frozen=True):
    desc: str = ""
    ranks: str = ""


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[Collective] = []
    pg_config: dict[str, _Members] = {}


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A collective of a group in which ranks wait.

    `late`: the members that did not join it, each with its last collective of the group, if any.
    """

    group: str
    name: str
    number: int
    waiting: tuple[int, ...]
    late: Mapping[int, Collective | None]

    def __str__(self) -> str:
        text = f"{_ranks(self.waiting)} in {self.name} (collective {self.number} of group {self.group})"
        apart = [rank for rank, last in self.late.items() if last is not None and last.waits]
        behind = [rank for rank in self.late if rank not in apart]
        if behind:
            text += f", which {_ranks(behind)} did not reach"
        for rank in apart[:MAX_SHOWN]:
            last = self.late[rank]
            text += f", while rank {rank} is in {last.name} there" if last else ""
        return text


def read_flights(folder: Path, ranks: int) -> dict[int, Flight]:
    """Reads the flight recorders' files, by rank.

    A rank is absent if it was not asked, could not answer or wrote only a part.
    """
    found = {}
    for rank in range(ranks):
        try:
            found[rank] = msgspec.json.decode((folder / f"rank{rank}.flight.json").read_bytes(), type=Flight)
        except (OSError, msgspec.DecodeError):
            continue
    return found


def stuck_in(flights: Mapping[int, Flight]) -> list[Stuck]:
    """Returns the collectives that ranks wait in, for each rank the first of each group, without point-to-point
    operations; those that some rank did not join come first."""
    found: list[Stuck] = []
    for group, of_group in _by_group(flights).items():
        waiting = {rank: wait for rank, each in of_group.items() if (wait := _first_waiting(each))}
        for key in dict.fromkeys((wait.collective_seq_id, wait.name) for wait in waiting.values()):
            number, name = key
            inside = tuple(rank for rank, wait in waiting.items() if (wait.collective_seq_id, wait.name) == key)
            late = {
                rank: _last(of_group.get(rank, ()))
                for rank in _members(group, flights, of_group)
                if rank not in inside and _is_late(of_group.get(rank, ()), number)
            }
            shown = group[1] or group[0] or "default"
            found.append(Stuck(group=shown, name=name, number=number, waiting=inside, late=late))
    return sorted(found, key=lambda each: (not each.late, -len(each.waiting)))


def flight_text(flights: Mapping[int, Flight]) -> tuple[str, int | None] | None:
    """Returns the hang in words, and the rank that is late and waits in no collective itself, if there is exactly one;
    None if no rank waits."""
    stuck = stuck_in(flights)
    if not stuck:
        return None
    waits = {rank for each in stuck for rank in each.waiting}
    missing = {rank for each in stuck for rank in each.late} - waits
    text = "; ".join(map(str, stuck[:MAX_SHOWN]))
    return f"flight recorder: {text}", min(missing) if len(missing) == 1 else None


def _by_group(flights: Mapping[int, Flight]) -> dict[Group, dict[int, Sequence[Collective]]]:
    found: dict[Group, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for rank, flight in flights.items():
        for entry in flight.entries:
            if not entry.is_p2p:
                found[entry.process_group][rank].append(entry)
    return {group: dict(of_group) for group, of_group in found.items()}


def _first_waiting(entries: Sequence[Collective]) -> Collective | None:
    return next((entry for entry in entries if entry.waits), None)


def _last(entries: Sequence[Collective]) -> Collective | None:
    return entries[-1] if entries else None


def _is_late(entries: Sequence[Collective], number: int) -> bool:
    """Returns whether a member has not started this collective, or waits in an earlier one, or in it under another
    name."""
    last = _last(entries)
    waits = _first_waiting(entries)
    return last is None or last.collective_seq_id < number or (waits is not None and waits.collective_seq_id <= number)


def _members(group: Group, flights: Mapping[int, Flight], seen: Mapping[int, object]) -> Iterator[int]:
    """Yields the ranks of a group that answered: those that its members' files list; without a list all of them for the
    default group, else those that were seen in it."""
    for rank in seen:
        for name, config in flights[rank].pg_config.items():
            if (name == group[0] or config.desc == group[1]) and config.ranks.startswith("["):
                yield from (each for each in json.loads(config.ranks) if each in flights)
                return
    yield from (flights if group[1] == "default_pg" else seen)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_SHOWN])) + (", …" if len(ranks) > MAX_SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown})"
