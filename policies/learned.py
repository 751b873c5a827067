"""The policy that learns its cluster: what every recipe of the legal space is believed to give, phase by phase.

The phases are questions asked of one ranking: fit (what runs surely and fast), scale (another layout), profile (what
acts on the wall that the trace names), retune (the rest). What the closed forms have no opinion on is left to the fixes
of the walls. A pure function of its arguments, as `policy.Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from policies.surrogate.surrogate import Surrogate, believed
from policies.surrogate.lesson import Lesson
from policies.surrogate.prior import prior_of
from policies.surrogate.time import INTERVAL
from policies.carried import carrying
from policies.consider import Candidate, Idea, consider
from policies.cures import walls_of
from policies.fit import needs_room, propose_fit
from policies.fix import Fix
from policies.fixes import FIXES
from policies.gate import measured_limit
from policies.noise import throughput
from policies.phases import plan_of
from policies.policy import Policy
from policies.prospects import NO_OPINION, ROOM, SURE, Doubt, Move, Prospect, asked_of_fits, lost, pairs, prospects
from policies.reasons import because_of_fit, because_of_prospect
from policies.retune import propose_retune, told, walls_worth_it
from policies.search import MODEL, suggest
from policies.space import moves
from policies.trial import Phase, Prediction, Proposal, Status, Trial
from policies.untold import out_of_patience, propose_untold
from policies.view import View, view_of
from policies.words import because_of_wall
from trainer.estimate.candidates import tabulate
from trainer.estimate.plan.feasible import MOST_GPUS, fewest_nodes
from trainer.estimate.plan.search import Search, search
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import sizes_of

WORTH = 0.001  # expected improvement of log throughput below which a burst is not paid for: a minute of a day
HOPELESS = 0.01  # P(fits) below which a recipe is not tried even where nothing runs
HANDS_OVER = 0.5  # of the best prospect's worth: a phase with less to offer lets the next one go first
# Of what is told of single settings: 115 bursts on such in 19 studies of benchmarks.policy; told to be worth 0.8 to
# 3 %, they brought 0.07 % each
CAME_TRUE = 0.1
LOOKED_AT = 40  # prospects that a phase looks through
FIRST = 12  # of which, where nothing runs yet, the order of the field picks one
ALIKE = 0.003  # log step: what the belief cannot tell apart, and the order of the field decides
LADDER = (None, "selective", "full")  # recompute, least first


class LearnedPolicy:
    """`seed` is handed on to the fixes' policy and Optuna's samplers; `lessons` are of other studies."""

    def __init__(self, base: Recipe, seed: int, lessons: Sequence[Lesson] = ()) -> None:
        self._prior, self._lessons = prior_of(lessons), tuple(lessons)
        self._base, self._seed = base, seed
        self._fixes = Policy(base, seed)
        self._known: tuple[tuple[object, ...], Surrogate, list[Prospect], Candidate | None] | None = None
        self._moves: tuple[str, list[Move]] | None = None
        self._space: Search | None = None

    def _prospects(self, view: View, best: Recipe | None, belief: Surrogate) -> Iterator[Prospect]:
        """None asks for more threads of a rank than it is known to have cores for."""
        self._space = self._space or search(self._base, room=ROOM)
        space = carrying(self._space, self._base, best, belief, least=WORTH) if best else self._space
        near = self._near(best) if best else []
        doubts, asked = _doubts(view.trials), asked_of_fits(view.trials)
        found = prospects(space, best, belief, view.tried, near, doubts, view.refusals, asked=asked)
        return (each for each in found if _has_cores(view, each.recipe))

    def _near(self, best: Recipe) -> list[Move]:
        """The single moves around a recipe, kept while it is the best."""
        if self._moves is None or self._moves[0] != best.digest():
            self._moves = best.digest(), list(moves(best))
        return self._moves[1]

    def propose(self, best: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        """The next recipe of this phase; None when the phase has nothing that is worth a burst."""
        view = view_of(best, trials, self._fixes.estimate)
        if throughput(best) is None or needs_room(view):
            return self._fitting(view) if phase is Phase.FIT and needs_room(view) else None
        if phase is Phase.FIT:
            return None
        if phase is Phase.RETUNE and best.recipe.tune.sampler != MODEL:
            return propose_retune(view, self._seed)
        belief, ranked, cure = self._ranked(view)
        chosen = self._chosen(view, phase, ranked, beside=_worth(cure))
        if cure is not None and phase is Phase.PROFILE and _worth(cure) >= (chosen.worth if chosen else WORTH):
            return self._fix(view, phase, cure)
        if chosen is not None:
            return self._proposal(view, phase, chosen, belief, ranked)
        elsewhere = _left_to_another_phase(view, ranked)
        if phase is Phase.RETUNE:
            if not elsewhere and (pair := self._searched(view, belief)) is not None:
                return self._proposal(view, phase, pair, belief, ranked)
            return propose_untold(view, belief, least=max(WORTH, elsewhere / CAME_TRUE))
        return self._unseen(view, phase, belief) if phase is Phase.PROFILE and not elsewhere else None

    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        """The cheapest change of the recipe as given that is predicted to fit."""
        view = view_of(given, trials, self._fixes.estimate)
        found = propose_fit(view, plan_of(Phase.FIT))
        if found is None:
            return None
        return replace(found, because=f"reference of the speed-up, as near the base recipe as runs: {found.because}")

    def why_stopped(self, best: Trial, trials: Sequence[Trial]) -> str:
        view = view_of(best, trials, self._fixes.estimate)
        if throughput(best) is None:
            needed = f"; {self._what_it_takes()}" if needs_room(view) else ""
            return self._fixes.why_stopped(best, trials) + needed
        belief, ranked, _ = self._ranked(view)
        told = INTERVAL * belief.time.noise
        if not ranked:
            by = f" (two bursts differ by up to {100 * math.expm1(told):.1f} %)" if told else ""
            return f"no legal recipe is left that could gain more than the noise{by}{_and_impatient(view)}"
        worth = 100 * math.expm1(ranked[0].worth)
        gain = f"the next burst is expected to gain {f'{worth:.2g}' if worth >= 0.01 else 'less than 0.01'} %"
        if ranked[0].worth < WORTH:
            return f"{gain}, below the limit of {100 * WORTH:.1f} %{_and_impatient(view)}"
        sampler = best.recipe.tune.sampler  # that of retune, where it is not the belief
        return gain if sampler == MODEL else f"{gain}, but {sampler} (tune.sampler) has nothing left to propose"

    def _what_it_takes(self) -> str:
        nodes = fewest_nodes(self._base, above=self._base.cluster.nodes)
        if nodes is None:
            return f"by estimate it fits on no cluster of up to {MOST_GPUS:,} of these GPUs"
        return f"by estimate it needs at least {nodes} of these nodes"

    def rejected_ideas(self, best: Trial, trials: Sequence[Trial]) -> tuple[Idea, ...]:
        return self._fixes.rejected_ideas(best, trials)

    def belief(self, trials: Sequence[Trial]) -> Surrogate:
        measured = measured_limit(trials)
        limit = self._base.memory_limit_gib if measured is None else measured
        return fit_surrogate(trials, limit_gib=limit, prior=self._prior)

    @property
    def _taught(self) -> str:
        told = [f"{lesson.trials} of {lesson.study}" if lesson.trials else lesson.study for lesson in self._lessons]
        return f", and from {', '.join(told)}" if told else ""

    def _ranked(self, view: View) -> tuple[Surrogate, list[Prospect], Candidate | None]:
        """The belief, what is worth a look by it, and the cure for what it does not see: worked out once for the phases
        of one decision."""
        key = (view.best.number, *((t.number, len(t.outcomes), t.verdict) for t in view.trials))
        if self._known is None or self._known[0] != key:
            belief = self.belief(view.trials)
            found = _worth_a_look(self._prospects(view, view.best.recipe, belief))
            self._known = key, belief, found, self._cure(view, belief)
        return self._known[1:]

    # --- fit ----------------------------------------------------------------------------------------------
    def _fitting(self, view: View) -> Proposal | None:
        belief = self.belief(view.trials)
        found = list(islice(self._prospects(view, None, belief), FIRST))
        if not found or found[0].fits < SURE:  # no plan varies what saves memory in the last resort
            beside = self._saving(view, belief, least=found[0].fits if found else HOPELESS)
            if beside or not found or found[0].fits < HOPELESS:
                return beside
        chosen = _by_the_field(found)
        return Proposal(
            recipe=chosen.recipe,
            parent=view.best.number,
            phase=Phase.FIT,
            fix=_fix_of(view, chosen.recipe) or "search",
            because=because_of_fit(view, chosen, belief) + self._taught,
            predicted=Prediction(peak_gib=self._peak(chosen, belief), fits_probability=chosen.fits),
        )

    def _saving(self, view: View, belief: Surrogate, *, least: float) -> Proposal | None:
        """The cheapest set of fixes that is predicted to fit, offloading in the last resort; None where it is less
        likely to fit than `least`."""
        found = propose_fit(view, plan_of(Phase.FIT))
        chance = float(belief.memory.fits(tabulate([found.recipe]))[0]) if found else 0.0
        if found is None or chance <= max(least, HOPELESS):
            return None
        return replace(found, predicted=replace(found.predicted, fits_probability=chance))

    # --- scale, profile, retune ---------------------------------------------------------------------------
    def _chosen(self, view: View, phase: Phase, ranked: Sequence[Prospect], *, beside: float) -> Prospect | None:
        """The phase's best, where it is worth a burst and neither another phase nor what stands `beside` has twice as
        much to offer."""
        if not ranked:
            return None
        least = max(WORTH, HANDS_OVER * max(ranked[0].worth, beside))
        found = [each for each in ranked if each.worth >= least and _phase_of(view, each.recipe) is phase]
        return _by_the_field(found) if found else None

    def _searched(self, view: View, belief: Surrogate) -> Prospect | None:
        """The best of the pairs of moves around the best, asked of an Optuna study that is told every trial."""
        best, asked = view.best.recipe, asked_of_fits(view.trials)
        found = pairs(best, belief, view.tried, self._near(best), least=WORTH, asked=asked, refusals=view.refusals)
        found = [each for each in found if _has_cores(view, each.prospect.recipe)]
        if not found:
            return None
        axes = list({axis.name: axis for around in found for axis in around.axes}.values())
        points = {tuple(sorted(each.point(axes).items())): each.prospect for each in found}
        chosen = suggest(
            {axis.name: tuple(axis.options) for axis in axes},
            told(view, axes),
            [],
            seed=self._seed,
            refuse=lambda point: None if tuple(sorted(point.items())) in points else "not expected to pay",
            sampler=MODEL,
            ranked=[dict(point) for point in points],
        )
        return points[tuple(sorted(chosen.items()))] if chosen else None

    def _proposal(
        self, view: View, phase: Phase, chosen: Prospect, belief: Surrogate, ranked: Sequence[Prospect]
    ) -> Proposal:
        expected, low, high = chosen.gains
        second = next((each for each in ranked if each is not chosen), None)
        return Proposal(
            recipe=chosen.recipe,
            parent=view.best.number,
            phase=phase,
            fix=_fix_of(view, chosen.recipe) or "search",
            because=because_of_prospect(view, chosen, second, belief) + self._taught,
            predicted=Prediction(
                gain=expected,
                gain_low=low,
                gain_high=high,
                gain_bound=high,
                peak_gib=self._peak(chosen, belief),
                fits_probability=chosen.fits,
            ),
        )

    def _peak(self, chosen: Prospect, belief: Surrogate) -> float:
        return float(belief.memory.peaks(tabulate([chosen.recipe]))[0])

    # --- what the closed forms do not see -------------------------------------------------------------------
    def _unseen(self, view: View, phase: Phase, belief: Surrogate) -> Proposal | None:
        """The fix with the largest expected gain among those that the belief has no opinion on and the noise leaves."""
        best = self._best_unseen(view, belief, [fix for fix in FIXES.values() if phase in fix.phases])
        return self._fix(view, phase, best) if best is not None else None

    def _cure(self, view: View, belief: Surrogate) -> Candidate | None:
        """The fix for what ranks wait for by a cause of which the belief knows nothing; None where there is none."""
        waits = {part for part, us in view.situation.of_no_wall.items() if us > 0}
        acting = [
            fix
            for fix in FIXES.values()
            if Phase.PROFILE in fix.phases and any(waits & set(claim.parts) for claim in fix.claims)
        ]
        return self._best_unseen(view, belief, acting)

    def _best_unseen(self, view: View, belief: Surrogate, fixes: Sequence[Fix]) -> Candidate | None:
        if view.situation.analysis is None:
            return None
        considered = (consider(fix, view, Phase.PROFILE) for fix in fixes)
        found = [each for each in considered if isinstance(each, Candidate) and each.wall]
        told = [each for each in found if not _lost(each, belief.time.noise)]
        unseen = [each for each in told if self._no_opinion(view, each.recipe, belief)]
        return max(unseen, key=lambda candidate: candidate.gain, default=None)

    def _fix(self, view: View, phase: Phase, candidate: Candidate) -> Proposal:
        return Proposal(
            recipe=candidate.recipe,
            parent=view.best.number,
            phase=phase,
            fix=candidate.fix.name,
            because=f"{because_of_wall(candidate, view)}; the estimate does not model it",
            predicted=candidate.prediction,
        )

    def _no_opinion(self, view: View, recipe: Recipe, belief: Surrogate) -> bool:
        table = tabulate([view.best.recipe, recipe])
        now, then = belief.time.means(table)
        best, fits = belief.memory.fits(table)
        return abs(float(then - now)) < NO_OPINION and bool(fits >= min(SURE, best))


def _left_to_another_phase(view: View, ranked: Sequence[Prospect]) -> float:
    """What the best prospect is worth, where a phase will propose it; 0 where none does."""
    if not ranked or ranked[0].worth < WORTH:
        return 0.0
    by_sampler = view.best.recipe.tune.sampler != MODEL and _phase_of(view, ranked[0].recipe) is Phase.RETUNE
    return 0.0 if by_sampler else ranked[0].worth


def _worth(candidate: Candidate | None) -> float:
    """Expected log throughput; 0 for nothing."""
    return math.log1p(candidate.gain) if candidate is not None else 0.0


def _and_impatient(view: View) -> str:
    if not out_of_patience(view):
        return ""
    return (
        f"; of what is not estimated {view.best.recipe.tune.patience} settings in a row brought no gain (tune.patience)"
    )


def _lost(candidate: Candidate, noise: float) -> bool:
    return lost(noise, expected=math.log1p(candidate.gain), most=math.log1p(candidate.bound))


def _has_cores(view: View, recipe: Recipe) -> bool:
    outcome = view.situation.outcome
    known = outcome is not None and outcome.cores_per_rank is not None
    more = recipe.knob("threads_per_rank") > view.best.recipe.knob("threads_per_rank")
    return not (view.situation.oversubscribes(recipe) if known else more)


def _doubts(trials: Sequence[Trial]) -> list[Doubt]:
    """Of every recipe that failed, memory apart, what no recipe that ran has had."""
    ran = [trial.recipe for trial in trials if trial.status is Status.OK]
    failed = [trial.recipe for trial in trials if trial.status is Status.FAILED and ran]
    found = [
        {
            knob: value
            for knob, (value, _) in recipe.diff(ran[0]).items()
            if all(other.knob(knob) != value for other in ran)
        }
        for recipe in failed
    ]
    return [doubt for doubt in found if doubt]


def _worth_a_look(found: Iterator[Prospect]) -> list[Prospect]:
    """The first, and what is worth as much to some phase."""
    first = next(found, None)
    if first is None:
        return []
    least = max(WORTH, HANDS_OVER * first.worth)
    return [first, *takewhile(lambda each: each.worth >= least, islice(found, LOOKED_AT))]


def _phase_of(view: View, recipe: Recipe) -> Phase:
    """Which question a recipe answers, from the best."""
    best = view.best.recipe
    if sizes_of(best) != sizes_of(recipe) or best.training.micro_batch_size != recipe.training.micro_batch_size:
        return Phase.SCALE
    walls = {wall for knob in best.diff(recipe) for wall in KNOBS[knob].walls}
    return Phase.PROFILE if walls & _walls_named(view) else Phase.RETUNE


def _walls_named(view: View) -> set[str]:
    """The wall that is named, or whose knobs act on what the step is lost to; where there is none, every one that could
    give more than the noise."""
    analysis = view.situation.analysis
    if analysis is None:
        return set()
    return {wall.value for wall in walls_of(analysis.diagnosis)} or walls_worth_it(view)


def _by_the_field(found: Sequence[Prospect]) -> Prospect:
    """The first, or what is expected to be as fast and as sure with less model parallelism, recompute or offload."""
    first = found[0]
    alike = [
        each for each in found if each.log_step <= first.log_step + ALIKE and each.fits >= min(first.fits, SURE) - 0.02
    ]
    return min(alike, key=lambda each: _order(each.recipe)) if first in alike else first


def _order(recipe: Recipe) -> tuple[int, int, int]:
    tp, pp, _, cp, _, _ = sizes_of(recipe)
    offload = recipe.knob("optimizer_cpu_offload") or recipe.knob("fine_grained_activation_offloading")
    return int(bool(offload)), tp * pp * cp, LADDER.index(recipe.knob("recompute_granularity"))


def _fix_of(view: View, recipe: Recipe) -> str | None:
    """The fix that makes exactly this step, if one does."""
    moved = {knob: to for knob, (_, to) in view.best.recipe.diff(recipe).items()}
    for fix in FIXES.values():
        if fix.precondition(view.situation) is None and moved in fix.changes(view.situation):
            return fix.name
    return None
