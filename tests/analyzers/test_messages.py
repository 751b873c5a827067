"""NCCL's arguments of an event as a Message."""

from __future__ import annotations

import pytest

from analyzers.readers.json_events import Arguments
from analyzers.readers.messages import message_key, message_of


@pytest.mark.parametrize(
    ("name", "listed", "ranks", "group"),
    [
        ("tp", [4, 5], (4, 5), "tp of ranks 4, 5"),
        ("tp", "[4, 5]", (4, 5), "tp of ranks 4, 5"),
        ("dp", "[0, 1, ..., 31]", (0, 1, 31), "dp of ranks 0, 1, ..., 31"),  # as torch shortens a long list
        ("dp", None, (), "dp of ranks "),
        (None, [4, 5], (), ""),
    ],
)
def test_a_message_has_the_ranks_of_its_group_as_numbers(
    name: str | None, listed: str | list[int] | None, ranks: tuple[int, ...], group: str
) -> None:
    message = message_of(message_key(Arguments(group_name=name, group_ranks=listed)))
    assert message.group_ranks == ranks
    assert message.group == group
