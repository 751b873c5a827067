"""Splits long sequences over more ranks."""

import math

from policies.changes.degrees import DEGREES, larger, with_cp
from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import grows
from policies.situation import Situation
from policies.trial import Phase

TOKENS_A_RANK = 4096


def _precondition(situation: Situation) -> str | None:
    tokens = _tokens_a_rank(situation)
    if tokens < 2 * TOKENS_A_RANK:
        return f"a rank has {tokens} tokens of a sequence; CP pays from {2 * TOKENS_A_RANK}"
    return None if larger(situation.recipe, "cp") else "there are no more ranks for CP"


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    now = recipe.knob(DEGREES["cp"])
    guess = now * 2 ** round(math.log2(_tokens_a_rank(situation) / TOKENS_A_RANK))
    nearest_first = sorted(larger(recipe, "cp"), key=lambda size: abs(math.log2(size / guess)))
    return [change for size in nearest_first[:3] for change in with_cp(recipe, size)]


def _tokens_a_rank(situation: Situation) -> int:
    ranks = situation.knob(DEGREES["cp"]) * situation.knob(DEGREES["tp"])
    return int(situation.knob("seq_length")) // int(ranks)


FIX = Fix(
    name="more_context_parallel",
    title="more context parallelism",
    page=Page(
        summary="More context parallelism: split long sequences over ranks.",
        what=(
            "`context_parallel_size` raised by powers of two until a rank has about 4096 tokens of a sequence; then "
            "the sizes next to that."
        ),
        shows="out of memory with activations of a long sequence the largest part; attention dominating compute.",
        costs=(
            "key/value exchange in every attention; below 4096 tokens per rank it is exposed. Activations divide by "
            "CP, weights do not."
        ),
        not_when="less than 8192 tokens per rank (TP with sequence parallel divides them as well).",
        source="arXiv 2603.07685 sections 6 and 9 (keep seq/(CP x TP) at 4096 to 8192; CP from 8192 tokens).",
    ),
    phases=(Phase.FIT, Phase.SCALE),
    fit_order=90,
    knobs=(DEGREES["cp"],),
    matches=grows(DEGREES["cp"]),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.15,
    chance=0.5,
)
