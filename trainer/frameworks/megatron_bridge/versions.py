"""The differences between releases of Megatron-Bridge, each read in the release's source: names added and renamed."""

from __future__ import annotations

import re

from trainer.errors import BadInputError, Problem

Version = tuple[int, ...]
OLDEST: Version = (0, 3)
NEWEST: Version = (0, 6, 2)  # read in 0.3.1, 0.4.0, 0.5.0 and 0.6.2

# release of Megatron-Core that introduced a field -> first release of Bridge that is used with it
WITH_CORE = {"0.18": (0, 5)}
GRAPH_MODULES: Version = (0, 5)  # first with model.cuda_graph_modules and cuda_graph_impl full_iteration
FSDP_WITHOUT_REUSE: Version = (0, 5)  # first whose MXFP8 parameters need no reused buffer under Megatron FSDP
ENVIRONMENT: Version = (0, 6)  # first with env_vars; a variable that the shell has set keeps the shell's value
# (first release of Bridge, the Megatron-Core that is used with it and with later releases), newest first
CORES: tuple[tuple[Version, str], ...] = (((0, 6), "head"), ((0, 5), "0.18"), ((0, 4), "0.17"), ((0, 3), "0.16.1"))
ONE_SM_COUNT: Version = (0, 6)  # first with model.moe_flex_dispatcher_num_sms, which overrides the counts by backend


def version_of(text: str | None) -> Version:
    """Returns a release as numbers; the newest known one for None or "head".

    Raises BadInputError if the text is not a version, or is older or newer than the known ones.
    """
    if text in (None, "head"):
        return NEWEST
    if match := re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text or ""):
        found = tuple(int(part) for part in match.groups() if part is not None)
        if found >= OLDEST and found[:2] <= NEWEST[:2]:
            return found
    known = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    raise BadInputError(
        Problem(where=f"--for {text}", what="not a known release of Megatron-Bridge", hint=f"one from {known}, or head")
    )


def core_of(version: Version) -> str:
    """Returns the Megatron-Core version of a release of Bridge."""
    return next(core for first, core in CORES if version >= first)
