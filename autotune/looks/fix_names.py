"""Names a change by the fixes in it, the largest share first.

A part that no fix covers is named by its knob, with its values, so that it is not taken for a fix.
"""

from __future__ import annotations

from autotune.looks.acting import Changes
from autotune.looks.quantities import gain, gib
from policies.fixes import FIXES
from policies.trial import FixShare, Proposal, Trial
from trainer.recipe.knobs import KNOBS
from trainer.values import knob_value

NAMED = 3  # most parts named in a heading
SEARCH = "search"  # the name that journals without `fixes` give to most changes
MIN_SHOWN_GIB = 0.001  # GiB; less is shown as 0
UNKNOWN = "not known"  # shown for the share of a part that cannot be removed by itself


def parts_of(proposal: Proposal, changes: Changes) -> tuple[FixShare, ...]:
    """Returns the named parts of a proposal; () for the base recipe.

    Journals of versions before `fixes` have no parts: the change is divided again, without shares.
    """
    if proposal.fixes or proposal.parent is None:
        return proposal.fixes
    if proposal.fix != SEARCH:
        return (FixShare(fix=proposal.fix, wall=None, knobs=tuple(changes)),)
    from policies.tuner.decomposition import members  # imports the whole tuner, which `status` does not need

    back = {knob: was for knob, (was, _) in changes.items() if knob in KNOBS}
    found = members(proposal.recipe.replace(back), proposal.recipe) if back else []
    return tuple(FixShare(fix=member.name, wall=None, knobs=member.knobs) for member in found)


def names_text(proposal: Proposal, changes: Changes, *, most: int | None = None) -> str:
    """Returns `micro_batch_up + drop_recompute + moe_router_fusion false → true`; at most `most` parts, then the number
    of the others."""
    names = [_name(part, changes) for part in parts_of(proposal, changes)]
    return _joined(names or [proposal.fix], most)


def short_names(trial: Trial, most: int = 2) -> str:
    """Returns the names of at most `most` of a trial's fixes, without values, for a row of a table."""
    parts = parts_of(trial.proposal, trial.changes)
    return _joined([part.fix for part in parts] or [trial.proposal.fix], most)


def titles_text(trial: Trial, most: int | None = NAMED) -> str:
    """Returns the titles of the fixes, for headings."""
    titles = [title_of(part, trial.changes) for part in parts_of(trial.proposal, trial.changes)]
    return _joined(titles or [name_title(trial.proposal.fix)], most)


def title_of(part: FixShare, changes: Changes) -> str:
    """Returns the title of a part: that of its fix, or its knob with both values."""
    return FIXES[part.fix].title if part.fix in FIXES else _name(part, changes)


def name_title(name: str) -> str:
    """Returns a fix's title; any other name unchanged."""
    return FIXES[name].title if name in FIXES else name


def shares_text(proposal: Proposal) -> str:
    """Returns `micro_batch_up (host) +12.0 %, drop_recompute (memory) +8.1 %, interaction −1.0 %`; the memory that each
    part frees, if the parent does not fit. Empty for one part or without known shares."""
    parts = proposal.fixes
    if len(parts) < 2 or all(part.predicted_share is None and part.frees_gib is None for part in parts):
        return ""
    frees = any(part.frees_gib is not None for part in parts)
    known = proposal.interaction is not None and not frees
    interaction = [f"interaction {gain(proposal.interaction)}"] if known else []
    return ", ".join([*map(_share, parts), *interaction])


def share_text(part: FixShare) -> str:
    """Returns a part's predicted share of the gain, or the memory that it frees; `not known` if it cannot be removed by
    itself."""
    if part.frees_gib is not None:
        if abs(part.frees_gib) < MIN_SHOWN_GIB:
            return "frees 0 GiB"
        return f"frees {gib(part.frees_gib)}" if part.frees_gib > 0 else f"takes {gib(-part.frees_gib)}"
    return UNKNOWN if part.predicted_share is None else gain(part.predicted_share)


def _share(part: FixShare) -> str:
    wall = f" ({part.wall})" if part.wall else ""
    return f"{part.fix}{wall} {share_text(part)}"


def is_spelled_out(proposal: Proposal, changes: Changes) -> bool:
    """Returns True if the names already contain every changed knob with its values."""
    parts = parts_of(proposal, changes)
    return all(part.fix not in FIXES and set(part.knobs) == {part.fix} for part in parts)


def _name(part: FixShare, changes: Changes) -> str:
    if part.fix in FIXES or part.fix not in changes:
        return part.fix
    was, now = changes[part.fix]
    return f"{part.fix} {knob_value(was)} → {knob_value(now)}"


def _joined(names: list[str], most: int | None) -> str:
    if most is None or len(names) <= most:
        return " + ".join(names)
    return " + ".join([*names[:most], f"{len(names) - most} more"])
