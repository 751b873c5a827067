"""The phases of a tuning run, and which candidates each may propose.

fit looks for the fastest recipe that should fit in memory, scale for another layout or micro batch, profile acts on the
wall that the trace names, retune moves the rest, alone or in pairs. Source: the workflow of arXiv 2603.07685 section
9.1 and Megatron-Bridge's performance skills.
"""

from __future__ import annotations

from policies.advice.cures import walls_of
from policies.candidates.knowledge import Knowledge
from policies.changes.fix import gain_of
from policies.trial import Phase
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import sizes_of


def phase_of(knowledge: Knowledge, recipe: Recipe) -> Phase:
    """Returns the phase that may propose a recipe: scale for another layout or micro batch, profile if a changed knob
    acts on the diagnosed wall, retune for the rest."""
    now = knowledge.recipe
    if sizes_of(now) != sizes_of(recipe) or now.training.micro_batch_size != recipe.training.micro_batch_size:
        return Phase.SCALE
    walls = {wall for knob in now.diff(recipe) for wall in KNOBS[knob].walls}
    return Phase.PROFILE if walls & _walls_named(knowledge) else Phase.RETUNE


def _walls_named(knowledge: Knowledge) -> set[str]:
    """Returns the wall of the diagnosis, or those whose knobs act on its cause; if it names neither, every wall that
    could give back more than the noise."""
    analysis = knowledge.situation.analysis
    if analysis is None:
        return set()
    return {wall.value for wall in walls_of(analysis.diagnosis)} or _walls_above_noise(knowledge)


def _walls_above_noise(knowledge: Knowledge) -> set[str]:
    situation = knowledge.situation
    findings = situation.analysis.diagnosis.walls if situation.analysis else []
    return {f.wall.value for f in findings if gain_of(f.recoverable_us, situation.step_us) > knowledge.noise}
