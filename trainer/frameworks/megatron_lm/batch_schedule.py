"""A batch size that grows in steps: `--step-batch-size-schedule "0:768 250B:1536"`, which no recipe can express.

Each part is a threshold in tokens and the batch size from there on. The parser refuses the flag together with
`--global-batch-size` (megatron/training/arguments.py:700), so a command keeps only one of the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.launch_scripts.argv import split

SCHEDULE = "--step-batch-size-schedule"
BATCH = "--global-batch-size"
_PART = re.compile(r"[\d.]+[KMBT]?:(\d+)")


def schedule_of(command: Sequence[str]) -> str | None:
    """Returns the batch schedule in a command, the last one if there are several; None if there is none."""
    written = [" ".join(each.values) for each in split(command) if each.flag == SCHEDULE]
    return written[-1] if written else None


def last_batch(schedule: str) -> int | None:
    """Returns the batch size that a schedule ends with, which bursts run; None if the text is not a schedule."""
    parts = [_PART.fullmatch(part) for part in schedule.split()]
    return int(parts[-1][1]) if parts and parts[-1] and all(parts) else None
