"""The exit codes of all commands and their meanings."""

from __future__ import annotations

DONE = 0
NO_RECIPE = 1
BAD_INPUT = 2
TOOL_FAILED = 3
INTERRUPTED = 130  # 128 + SIGINT, the shells' convention

MEANINGS: dict[int, str] = {
    DONE: "done",
    NO_RECIPE: "no recipe runs, or `check` found problems",
    BAD_INPUT: "bad input: the message says what, where and what to do",
    TOOL_FAILED: "an engine, a launcher or a tool failed, or the disk is full",
    INTERRUPTED: "interrupted, can be resumed",
}
OF_ENDS = {
    "interrupted": INTERRUPTED,
    "infeasible": NO_RECIPE,
}  # exit codes by the status of `Ended`; any other status exits with DONE
