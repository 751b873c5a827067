"""The order of candidates with different sources: which of those that are worth a burst may be proposed now.

Predicted gains that two bursts could show come first, in the order of phases. Those that the study's noise would hide
come after them, and after published settings that are expected to bring more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.candidates.candidate import Candidate, PredictionSource
from policies.constants import constant
from policies.search.acquisition import is_lost_in_noise
from policies.trial import Z_90

PHASE_SHARE = constant("phase_share")


def in_turn(candidates: Sequence[Candidate], *, noise: float) -> list[Candidate]:
    """Returns the candidates, of all phases, that may be proposed now; `noise` is the relative half-spread of the
    throughput of repeated bursts.

    If the noise would hide some of the surrogate's candidates, but not all, those are left out. If it would hide all,
    and a published one scores higher than every other candidate, only the published ones are returned. Else a
    surrogate's candidate needs PHASE_SHARE of the best score, published ones not counted; those of other sources need
    the surrogate's best.
    """
    by = {source: [each for each in candidates if each.source is source] for source in PredictionSource}
    predicted, published = by[PredictionSource.SURROGATE], by[PredictionSource.PUBLISHED]
    shown = [each for each in predicted if not is_hidden(each, noise=noise)]
    modelled = [*(shown or predicted), *by[PredictionSource.TRACE]]
    if not shown and _best(published) > _best(modelled):
        return published
    best = _best(modelled, PredictionSource.SURROGATE)
    least = {
        PredictionSource.SURROGATE: PHASE_SHARE * max(best, _best(modelled, PredictionSource.TRACE)),
        PredictionSource.TRACE: best,
        PredictionSource.PUBLISHED: best,
    }
    return [each for each in (*modelled, *published) if each.score >= least[each.source]]


def is_hidden(candidate: Candidate, *, noise: float) -> bool:
    """Returns whether the study's noise would hide the predicted gain of a surrogate's candidate: published effects and
    claims within the noise are no candidates at all."""
    if candidate.source is not PredictionSource.SURROGATE or candidate.log_gain is None:
        return False
    most = candidate.log_gain + Z_90 * candidate.deviation
    return is_lost_in_noise(math.log1p(noise) / Z_90, expected=candidate.log_gain, most=most)


def _best(found: Sequence[Candidate], source: PredictionSource | None = None) -> float:
    return max((each.score for each in found if source in (None, each.source)), default=0.0)
