"""The differences between releases of Megatron-Bridge, each read in the release's source: names added and renamed."""

from __future__ import annotations

import re

from packaging.version import Version as CoreVersion

from trainer.errors import BadInputError, Problem
from trainer.recipe.knobs import Knob
from trainer.recipe.rules.releases import NEWEST as CORE_HEAD
from trainer.releases import core_of_bridge

Version = tuple[int, ...]
RELEASES: tuple[Version, ...] = ((0, 3), (0, 4), (0, 5), (0, 6))
OLDEST: Version = RELEASES[0]
NEWEST: Version = (0, 6, 2)  # read in 0.3.1, 0.4.0, 0.5.0 and 0.6.2

GRAPH_MODULES: Version = (0, 5)  # first with model.cuda_graph_modules and cuda_graph_impl full_iteration
FSDP_WITHOUT_REUSE: Version = (0, 5)  # first whose MXFP8 parameters need no reused buffer under Megatron FSDP
ENVIRONMENT: Version = (0, 6)  # first with env_vars; a variable that the shell has set keeps the shell's value
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
    return core_of_bridge(".".join(map(str, version))) or CORE_HEAD


def first_with(core: str) -> Version:
    """Returns the first release of Bridge whose Megatron-Core is this one or later: it has what this one brought."""
    wanted = CoreVersion(core)
    return next(bridge for bridge in RELEASES if CoreVersion(core_of(bridge)) >= wanted)


def known_to(knob: Knob, version: Version) -> bool:
    """Returns whether the Megatron-Core of a release of Bridge has the knob."""
    return knob.since is None or version >= first_with(knob.since)
