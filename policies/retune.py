"""Retuning: a search over the knobs that mattered, around the best recipe.

The diagnosis's fixes go first, then recompute and micro batch again (memory may have been freed since), then the
sampler. It ends when `tune.patience` proposals in a row brought nothing, or no wall's bound beats the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyzers.diagnosis import Wall
from policies.consider import Candidate, consider
from policies.fix import gain_of
from policies.fixes import FIXES
from policies.gate import Forecast, excess
from policies.legality import Refusal, derive
from policies.noise import throughput
from policies.recompute import heavier, lighter
from policies.search import MODEL, Measured, Point, suggest
from policies.space import AXES, CURRENT, Axis, axis_of, point_of, recipe_at
from policies.trial import Phase, Prediction, Proposal, Status, Trial
from policies.view import View
from policies.words import because_of_wall, leading_wall
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

# Axes always searched, and how many in all: with a budget of tens of bursts more would only dilute the search.
ALWAYS = ("recompute", "micro batch")
MOST_AXES = 6
LAYOUTS = ("EP", "TP", "PP", "CP")
# Decisions a point may move at once: more would leave the neighbourhood that the trials say something about.
MOST_MOVES = 2


def propose_retune(view: View, seed: int) -> Proposal | None:
    """The next point of the search; None when it stopped paying."""
    if exhausted(view):
        return None
    axes = _axes(view)
    candidates = _fixes_first(view)
    wanted = [*(candidate.recipe for candidate in candidates), *_revisited(view)]
    hints = [point for recipe in wanted if (point := point_of(view.best.recipe, axes, recipe)) is not None]
    point = suggest(
        {axis.name: tuple(axis.options) for axis in axes},
        told(view, axes),
        hints,
        seed=seed + len(view.trials),
        refuse=lambda point: _refuse(view, axes, point),
        sampler=_sampler(view),
    )
    return _proposal(view, axes, point, candidates) if point else None


def _sampler(view: View) -> str:
    """The recipe's, but where nothing is believed (this file's search) surrogate is tpe."""
    wanted = view.best.recipe.tune.sampler
    return "tpe" if wanted == MODEL else wanted


def exhausted(view: View) -> str | None:
    """Why the search is over, in words; None while it goes on."""
    if not view.best.outcomes or throughput(view.best) is None:
        return "no recipe runs yet"
    patience = view.best.recipe.tune.patience
    without_gain = 0
    for trial in reversed(view.trials):
        if trial.proposal.phase is not Phase.RETUNE or trial.accepted:
            break
        without_gain += 1
    if without_gain >= patience:
        return f"{patience} settings in a row around the best brought no gain"
    bound = largest_bound(view)
    if bound is not None and bound <= view.noise:
        return f"no wall has more to recover than {100 * bound:.1f} %, within the noise of {100 * view.noise:.1f} %"
    return None


def largest_bound(view: View) -> float | None:
    """The most any one wall could give: T/(T-R)-1. None without a trace."""
    situation = view.situation
    findings = situation.analysis.diagnosis.walls if situation.analysis else []
    return max((gain_of(f.recoverable_us, situation.step_us) for f in findings), default=None)


def _axes(view: View) -> list[Axis]:
    """Recompute and micro batch, then the axes that moved the throughput, then those never tried on a wall that
    is worth it."""
    moved, tried = set(), set()
    for trial in view.trials:
        touched = {name for name in AXES if set(AXES[name].knobs) & set(trial.changes)}
        tried |= touched
        if _mattered(view, trial):
            moved |= touched
    walls = walls_worth_it(view)
    new = [n for n in AXES if n not in tried and any(walls & set(KNOBS[knob].walls) for knob in AXES[n].knobs)]
    # What a layout gives is not in the walls alone: it also decides how evenly the ranks are loaded
    layouts = [name for name in LAYOUTS if name not in tried]
    order = [*ALWAYS, *(n for n in AXES if n in moved), *new, *layouts]
    axes: list[Axis] = []
    for name in dict.fromkeys(order):
        axis = axis_of(name, view.best.recipe, lambda recipe: _worth(view, recipe))
        if axis and len(axes) < MOST_AXES:
            axes.append(axis)
    return axes


def walls_worth_it(view: View) -> set[str]:
    """Walls whose bound beats the noise, by name; every wall where no trace says."""
    situation = view.situation
    if situation.analysis is None:
        return {wall.value for wall in Wall}
    findings = situation.analysis.diagnosis.walls
    return {f.wall.value for f in findings if gain_of(f.recoverable_us, situation.step_us) > view.noise}


def _worth(view: View, recipe: Recipe) -> bool:
    """Not more threads than cores, not a change that lost before, nor back to what was left behind with a gain;
    more recompute only to make room for a larger micro batch."""
    moved = {knob: to for knob, (_, to) in view.best.recipe.diff(recipe).items()}
    if view.situation.oversubscribes(recipe) or view.refused(recipe):
        return False
    if view.failed_before(moved) or view.undone_by(moved):
        return False
    heavy = [rung for rung in heavier(view.best.recipe) if all(recipe.knob(k) == v for k, v in rung.items())]
    return not heavy or _lacks_room(view, {"micro_batch_size": 2 * view.best.recipe.training.micro_batch_size})


def _mattered(view: View, trial: Trial) -> bool:
    """A trial whose throughput differs from its parent's by more than the noise, up or down; or that ran out."""
    parent = next((t for t in view.trials if t.number == trial.proposal.parent), None)
    if parent is None:
        return False
    before, after = throughput(parent), throughput(trial)
    if before is None or after is None:
        return trial.status is Status.OOM
    return abs(after / before - 1.0) > view.noise


def _fixes_first(view: View) -> list[Candidate]:
    considered = (consider(fix, view, Phase.RETUNE) for fix in FIXES.values() if Phase.RETUNE in fix.phases)
    candidates = [found for found in considered if isinstance(found, Candidate) and found.wall]
    return sorted(candidates, key=lambda candidate: -candidate.gain)


def _revisited(view: View) -> list[Recipe]:
    """Recompute and micro batch again: less recompute, another micro batch, and where a larger one does not fit,
    the larger one with more recompute to pay for it."""
    recipe = view.best.recipe
    size = recipe.training.micro_batch_size
    larger = {"micro_batch_size": 2 * size}
    changes = [*lighter(recipe), larger]
    if _lacks_room(view, larger):
        changes += [larger | rung for rung in heavier(recipe)]
    if size > 1:
        changes.append({"micro_batch_size": size // 2})
    derived = (derive(recipe, change) for change in changes)
    return [found for found in derived if isinstance(found, Recipe)]


def _lacks_room(view: View, changes: dict[str, Any]) -> bool:
    derived = derive(view.best.recipe, changes)
    return isinstance(derived, Recipe) and view.gate.forecast(derived).fits is False


def told(view: View, axes: Sequence[Axis]) -> list[Measured]:
    """Every trial that lies on these axes; the one that ran out of memory needed more than the limit."""
    seen = []
    for trial in view.trials:
        point = point_of(view.best.recipe, axes, trial.recipe)
        figure = throughput(trial)
        out_of_memory = trial.status is Status.OOM
        if point is None or (figure is None and not out_of_memory):
            continue
        seen.append(Measured(point=point, tokens_per_s=figure or 0.0, excess=excess(trial)))
    return seen


def _refuse(view: View, axes: Sequence[Axis], point: Point) -> str | None:
    moves = sum(label != CURRENT for label in point.values())
    if moves > MOST_MOVES:
        return f"{moves} decisions at once are not around the best"
    recipe = recipe_at(view.best.recipe, axes, point)
    if isinstance(recipe, Refusal):
        return recipe.reason
    if recipe.digest() in view.tried:
        return "tried"
    if refused := view.refused(recipe):
        return str(refused)
    forecast = view.gate.forecast(recipe)
    return forecast.because if forecast.fits is False else None


def _proposal(view: View, axes: Sequence[Axis], point: Point, candidates: Sequence[Candidate]) -> Proposal:
    recipe = recipe_at(view.best.recipe, axes, point)
    assert not isinstance(recipe, Refusal)
    same = next((c for c in candidates if c.recipe.digest() == recipe.digest()), None)
    if same:
        because, predicted, fix = because_of_wall(same, view), same.prediction, same.fix.name
    else:
        forecast = view.gate.forecast(recipe)
        because = _because_of_search(view, axes, forecast)
        predicted = Prediction(gain_bound=largest_bound(view), peak_gib=forecast.peak_gib)
        fix = "search"
    return Proposal(
        recipe=recipe,
        parent=view.best.number,
        phase=Phase.RETUNE,
        fix=fix,
        because=because,
        predicted=predicted,
    )


def _because_of_search(view: View, axes: Sequence[Axis], forecast: Forecast) -> str:
    wall = leading_wall(view.situation)
    memory = f"; memory: {forecast.because}" if forecast.peak_gib is not None else ""
    return (
        f"{wall + '; ' if wall else ''}the next point of the search around trial {view.best.number} over "
        f"{', '.join(axis.name for axis in axes)}{memory}"
    )
