"""Words for the changes of the tuned recipe: predicted and obtained shares, and the verdict on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.looks.fix_names import UNKNOWN, name_title
from autotune.looks.quantities import NONE, counted, gain, gain_interval
from policies.trial import ChangeShare, ChangeState

COLUMNS = ("change", "answers", "predicted share", "obtained share (90 %)", "verdict")
NUMBERS = (2, 3)
VERDICTS = {
    ChangeState.TAKEN_OUT: "taken out: nothing is lost without it",
    ChangeState.COSTS: "needed: measured to be slower without it",
    ChangeState.UNDECIDED: "kept: the bursts do not decide",
    ChangeState.NOT_MEASURED: "kept: no burst was without it",
    ChangeState.PREDICTED: "needed: predicted to be slower without it",
    ChangeState.MAY_NOT_FIT: "needed: may not fit without it",
    ChangeState.ILLEGAL: "needed: a rule asks for it",
}


def share_rows(changes: Sequence[ChangeShare]) -> tuple[tuple[str, ...], ...]:
    """Returns a row of COLUMNS for each change."""
    return tuple(
        (
            name_title(each.fix),
            str(each.wall or NONE),
            UNKNOWN if each.predicted_share is None else gain(each.predicted_share),
            obtained_text(each) or NONE,
            VERDICTS[each.state],
        )
        for each in changes
    )


def share_lines(changes: Sequence[ChangeShare]) -> Iterator[str]:
    """Yields per change `drop_recompute: predicted share +8.1 %, obtained +7.9 % (+7.0 to +8.8 %), needed: …`."""
    for each in changes:
        predicted = [] if each.predicted_share is None else [f"predicted share {gain(each.predicted_share)}"]
        obtained = [f"obtained {text}"] if (text := obtained_text(each)) else []
        yield f"{each.fix}: {', '.join([*predicted, *obtained, VERDICTS[each.state]])}"


def obtained_text(change: ChangeShare) -> str:
    """Returns `+0.1 % (−0.4 to +0.6 %), with 2 others`; empty if it was not measured."""
    if change.obtained_share is None or change.obtained_low is None or change.obtained_high is None:
        return ""
    together = f", with {counted(len(change.obtained_with), 'other')}" if change.obtained_with else ""
    return gain_interval(change.obtained_share, change.obtained_low, change.obtained_high) + together
