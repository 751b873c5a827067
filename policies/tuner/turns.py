"""The order of candidates with different sources: which of those that are worth a burst may be proposed now.

Predicted gains that two bursts could show come first, in the order of phases. Those that the study's noise would hide
come after them, and after published settings that are expected to bring more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.candidates.candidate import Candidate, Opinion
from policies.constants import constant
from policies.search.acquisition import is_lost_in_noise
from policies.trial import Z_90

PHASE_SHARE = constant("phase_share")


def in_turn(candidates: Sequence[Candidate], *, noise: float) -> list[Candidate]:
    """Returns the candidates of all phases that may be proposed now; `noise` is the half-spread of repeated bursts.

    A surrogate's candidate needs PHASE_SHARE of the best score, those of other sources at least the surrogate's best.
    """
    by = {opinion: [each for each in candidates if each.opinion is opinion] for opinion in Opinion}
    predicted, published = by[Opinion.SURROGATE], by[Opinion.PUBLISHED]
    shown = [each for each in predicted if not is_hidden(each, noise=noise)]
    modelled = [*(shown or predicted), *by[Opinion.TRACE]]
    if not shown and _best(published) > _best(modelled):
        return published
    best = _best(modelled, Opinion.SURROGATE)
    least = {
        Opinion.SURROGATE: PHASE_SHARE * max(best, _best(modelled, Opinion.TRACE)),
        Opinion.TRACE: best,
        Opinion.PUBLISHED: best,
    }
    return [each for each in (*modelled, *published) if each.score >= least[each.opinion]]


def is_hidden(candidate: Candidate, *, noise: float) -> bool:
    """Returns whether the study's noise would hide the predicted gain of a surrogate's candidate: published effects and
    claims within the noise are no candidates at all."""
    if candidate.opinion is not Opinion.SURROGATE or candidate.log_gain is None:
        return False
    most = candidate.log_gain + Z_90 * candidate.deviation
    return is_lost_in_noise(math.log1p(noise) / Z_90, expected=candidate.log_gain, most=most)


def _best(found: Sequence[Candidate], opinion: Opinion | None = None) -> float:
    return max((each.score for each in found if opinion in (None, each.opinion)), default=0.0)
