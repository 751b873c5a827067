"""Why a recipe of the legal space is proposed, in words: the wall, what moves, how surely, and on what ground."""

from __future__ import annotations

import math

from policies.surrogate.surrogate import Surrogate
from policies.surrogate.factors import move_constants
from policies.surrogate.time import INTERVAL
from policies.prospects import SURE, Prospect
from policies.view import View
from policies.words import failure_in_words, leading_wall
from trainer.estimate.candidates import tabulate
from trainer.estimate.time.estimate import time_of
from trainer.estimate.time.parts import STEP_PARTS

NAMED = 3  # parts that a reason names
NOTABLE = 0.005  # of a step


def because_of_prospect(view: View, chosen: Prospect, second: Prospect | None, belief: Surrogate) -> str:
    said = [leading_wall(view.situation), _moves(view, chosen, belief), _gain(chosen), _fits(chosen)]
    return "; ".join([each for each in said if each] + [_second(chosen, second), _ground(belief)])


def because_of_fit(view: View, chosen: Prospect, belief: Surrogate) -> str:
    step = math.exp(chosen.log_step)
    how = "the fastest that should fit" if chosen.fits >= SURE else "the highest P(fits) of all legal recipes"
    spread = 100 * INTERVAL * chosen.deviation
    return (
        f"{failure_in_words(view.situation, view.best.number)}; {how}: predicted {step:.3g} s per step "
        f"± {spread:.0f} %, {_fits(chosen)}; {_ground(belief)}"
    )


def _moves(view: View, chosen: Prospect, belief: Surrogate) -> str:
    """The parts of the step that should move most, from the best to the chosen, by the learnt constants."""
    table = time_of(tabulate([view.best.recipe, chosen.recipe]), constants=move_constants(belief.time.theta))
    parts = {words: table.by_part[name] for name, words in STEP_PARTS.items()}
    largest = sorted(parts, key=lambda words: -abs(parts[words][1] - parts[words][0]))[:NAMED]
    told = [
        f"{words} {_seconds(parts[words][0])} → {_seconds(parts[words][1])}"
        for words in largest
        if abs(parts[words][1] - parts[words][0]) > NOTABLE * table.step_s[0]
    ]
    return f"predicted: {', '.join(told)}" if told else "no part of the step is predicted to change by much"


def _gain(chosen: Prospect) -> str:
    expected, low, high = (100 * gain for gain in chosen.gains)
    return f"{expected:+.1f} % throughput (90 %: {low:+.1f} to {high:+.1f} %)".replace("-", "−")


def _fits(chosen: Prospect) -> str:
    return f"P(fits) {100 * min(chosen.fits, 0.999):.3g} %"


def _second(chosen: Prospect, second: Prospect | None) -> str:
    if second is None:
        return "the only candidate left"
    behind = 100 * (math.exp(chosen.worth) - math.exp(second.worth))
    if behind <= 0.05:
        return "the next candidate is worth as much"
    return f"the next candidate is worth {behind:.{0 if behind >= 1 else 1}f} % less"


def _ground(belief: Surrogate) -> str:
    measured = [each.number for each in belief.time.measured]
    if not measured:
        return "from the tables only: no burst yet"
    traced = sum(bool(each.ranks) for each in belief.time.measured)
    bursts = "trial" if len(measured) == 1 else "trials"
    return f"learned from {len(measured)} {bursts} of this study, {traced} of them traced"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
