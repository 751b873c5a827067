"""An ablation: the tuned recipe, the changes that it consists of, and the results of bursts without some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean

import numpy as np

from policies.ablation.parts import Part, ends_between, may_run, parts_between
from policies.ablation.removal import EMPTY, AblationStep, Removal, ablation_step, figures_of
from policies.bisect.differences import Ends
from policies.bisect.posterior import SMALL_DEVIATION, SmallEffects
from policies.bisect.question import Effect, Observation, Question, Subset, effect_of, log_costs
from policies.bisect.terms import Terms, terms_of
from policies.candidates.knowledge import Knowledge
from policies.constants import constant
from policies.noise import Noise
from policies.reason import Reason, ReasonKind
from policies.surrogate.blas import one_blas_thread
from policies.trial import ChangeShare, ChangeState, Phase, Prediction, Proposal
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

UNEXPECTED, UNSEEN = constant("ablation_unexpected"), constant("ablation_unseen")


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The input of an ablation: the tuned and the given recipe, and the changes between them. The methods take the
    results of bursts as arguments.

    A subset is a set of indices into `parts`.
    """

    knowledge: Knowledge
    ends: Ends
    parts: tuple[Part, ...]

    @cached_property
    def question(self) -> Question:
        free = frozenset(at for at, part in enumerate(self.parts) if part.kept_because is None)
        legal = cache(lambda subset: subset <= free and may_run(subset, self.ends, self.knowledge))
        guilt = tuple(UNSEEN if part.predicted.published else UNEXPECTED for part in self.parts)
        deviation = Noise(trials=self.knowledge.trials).between_bursts().deviation
        return Question(guilt=guilt, deviation=deviation, legal=legal)

    @one_blas_thread()
    def step(self, seen: Sequence[Observation]) -> AblationStep:
        """Returns the largest set of changes that the bursts so far allow to drop, and the set to take out next."""
        return ablation_step(self.question, self._terms, self._small, seen)

    def subset(self, recipe: Recipe) -> Subset | None:
        """Returns the changes that a recipe lacks; None if it is not the tuned recipe without some changes that may be
        taken out."""
        differing = self.ends.a.diff(recipe)
        taken = frozenset(at for at, part in enumerate(self.parts) if set(part.knobs) & set(differing))
        if taken and not self.question.legal(taken):
            return None
        return taken if self.ends.recipe(taken).digest() == recipe.digest() else None

    def proposal(self, removal: Removal) -> Proposal:
        """Returns the proposal to run the tuned recipe without some changes."""
        recipe = self.ends.recipe(removal.taken)
        table, memory = tabulate([recipe]), self.knowledge.surrogate.memory
        gain, low, high = (math.expm1(-cost) for cost in figures_of(removal.effect))
        names = {"taken": self.names(removal.taken), "of": len(self.parts), "probability": removal.nothing}
        return Proposal(
            recipe=recipe,
            parent=self.knowledge.incumbent.number,
            fidelity=self.knowledge.incumbent.fidelity,
            phase=Phase.ABLATION,
            fix=str(Phase.ABLATION),
            reason=Reason(kind=ReasonKind.TAKEN_OUT, figures=names),
            predicted=Prediction(
                gain=gain,
                gain_low=min(low, high),
                gain_high=max(low, high),
                peak_gib=float(memory.peaks(table)[0]),
                fits_probability=float(memory.fits(table)[0]),
            ),
        )

    def names(self, subset: Subset) -> list[str]:
        return [self.parts[at].name for at in sorted(subset)]

    def shares(self, seen: Sequence[Observation], gone: Subset = EMPTY) -> tuple[ChangeShare, ...]:
        """Returns every change with its predicted share and, where bursts measured it, the obtained one; the largest
        predicted share first. `gone` are the changes that the final recipe is without."""
        deviation = self.question.deviation
        found = [self._share(at, _obtained(at, seen, deviation), gone) for at in range(len(self.parts))]
        return tuple(sorted(found, key=lambda each: -(each.predicted_share or 0.0)))

    def _share(self, at: int, obtained: Effect | None, gone: Subset) -> ChangeShare:
        part = self.parts[at]
        known = part.kept_because is not ChangeState.ILLEGAL
        share = ChangeShare(
            fix=part.name,
            wall=part.wall,
            knobs=part.knobs,
            predicted_share=math.expm1(part.predicted.log_cost) if known else None,
            state=part.kept_because or ChangeState.NOT_MEASURED,
        )
        if obtained is not None:
            value, low, high = (math.expm1(cost) for cost in figures_of(obtained))
            together = tuple(self.names(frozenset(obtained.members) - {at}))
            state = ChangeState.COSTS if low > 0 and not together else ChangeState.UNDECIDED
            share = replace(
                share,
                obtained_share=value,
                obtained_low=low,
                obtained_high=high,
                obtained_with=together,
                state=state,
            )
        return replace(share, state=ChangeState.TAKEN_OUT) if at in gone else share

    @cached_property
    def _terms(self) -> Terms:
        return terms_of(self.question.guilt)

    @cached_property
    def _small(self) -> SmallEffects:
        """Returns the predicted effect of each change.

        The mean is 0 for a change that the estimate does not price: its effect is left to the posterior's terms.
        """
        predicted = [part.predicted for part in self.parts]
        return SmallEffects(
            mean=np.array([0.0 if each.published else each.log_cost for each in predicted]),
            deviation=np.array([SMALL_DEVIATION if each.published else each.deviation for each in predicted]),
        )


@one_blas_thread()
def ablation_of(knowledge: Knowledge) -> Ablation | None:
    """Returns the ablation of the incumbent; None if the incumbent does not run, or is the recipe as given."""
    if not knowledge.runs or not knowledge.given.diff(knowledge.recipe):
        return None
    ends = ends_between(knowledge.recipe, knowledge.given)
    return Ablation(knowledge=knowledge, ends=ends, parts=parts_between(ends, knowledge))


def _obtained(at: int, seen: Sequence[Observation], deviation: float) -> Effect | None:
    """Returns the measured cost of taking change number `at` out; None if no two recipes that ran show it.

    Compares two recipes that differ in it alone, else the tuned recipe and the one without the smallest set of changes
    that contains it.
    """
    ran = [subset for subset in dict.fromkeys(each.subset for each in seen) if log_costs(seen, subset)]
    alone = [(subset - {at}, subset) for subset in ran if at in subset and subset - {at} in ran]
    if alone:
        return min((_difference(*pair, seen, deviation) for pair in alone), key=_width)
    sets = [subset for subset in ran if at in subset and EMPTY in ran]
    return _difference(EMPTY, min(sets, key=len), seen, deviation) if sets else None


def _difference(with_it: Subset, without_it: Subset, seen: Sequence[Observation], deviation: float) -> Effect:
    ours, theirs = log_costs(seen, with_it), log_costs(seen, without_it)
    error = deviation * math.sqrt(1 / len(ours) + 1 / len(theirs))
    return effect_of(tuple(sorted(without_it - with_it)), fmean(theirs) - fmean(ours), error)


def _width(effect: Effect) -> float:
    _, low, high = figures_of(effect)
    return high - low
