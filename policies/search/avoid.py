"""Remembers what not to try again: recipes and changes that were tried, refused, failed or brought no gain.

All of it is rebuilt from the trials at each decision. A *refusal* is a reason for which the trainer of this machine
does not start: a knob's value that occurs in no recipe that got further. Among several such values, the cause is the
one that the trainer's message names (`sequence parallel is not supported by torch LayerNorm`), or those that a second
refusal with the same message has in common; until then only recipes with all of them are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np

from policies.constants import constant
from policies.noise import Noise
from policies.search.refusal import INACTIVE, TrainerRefusal, acting
from policies.search.software import refusals_of_missing_software
from policies.trial import Phase, Status, Trial, Verdict
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

REFUSED_BY_TRAINER = (FailureKind.CONFIG, FailureKind.IMPORT)
BEFORE_A_STEP = (None, BurstPhase.START, BurstPhase.INIT)
# A refused number counts as refused only together with the values of these knobs, until the trainer has refused two
# numbers or its message has named the knob
LAYOUT = (*(name for name, knob in KNOBS.items() if knob.section == "parallelism"), "micro_batch_size")
# messages name these knobs together with the sizes that must divide them, which may be the cause instead
BATCH = ("micro_batch_size", "global_batch_size")
COMMON_WORDS = frozenset({"moe", "use", "size", "model", "type", "num", "impl", "enable"})  # parts of many knobs' names
SHORTEST_VALUE = 5  # least number of letters of a value that is searched for in the trainer's message
SUSPECT_DISCOUNT = constant("suspect_discount")
UNCLEAR_NOISE = constant("unclear_noise")


class Avoid:
    """Evidence against spending bursts on recipes or changes, from the trials of a study."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = tuple(trials)
        self.tried = {trial.recipe.digest(): trial.number for trial in trials}
        self.refusals = refusals_of(trials)

    def excludes(self, recipe: Recipe) -> bool:
        """Returns whether a recipe was tried, or is known to be refused."""
        return recipe.digest() in self.tried or self.refusal(recipe) is not None

    def refusal(self, recipe: Recipe) -> TrainerRefusal | None:
        """Returns the known refusal that covers a recipe; None if there is none."""
        return next((each for each in self.refusals if each.covers(recipe)), None)

    @property
    def missing_knobs(self) -> frozenset[str]:
        """Returns the knobs that need software which the ranks lack."""
        return frozenset(knob for each in self.refusals if each.missing for knob in each.values)

    def warns_of(self, changes: Mapping[str, Any]) -> bool:
        """Returns whether a change sets a knob to a value that needs missing software, or to a suspect one: of a failed
        recipe, and of none that ran."""
        lacking = [each.values for each in self.refusals if each.missing]
        return any(
            any(suspects.get(knob) == value for suspects in self._suspects)
            or any(value in values.get(knob, ()) for values in lacking)
            for knob, value in changes.items()
        )

    def refused_rows(self, table: Candidates) -> Flags:
        """Returns bool[N]: rows that a known refusal covers."""
        found = np.zeros(table.count, dtype=bool)
        for each in self.refusals:
            rows = np.ones(table.count, dtype=bool)
            for knob, values in each.values.items():
                rows &= table.among(knob, *values)
            found |= rows
        return found

    def trust(self, table: Candidates) -> Floats:
        """Returns a factor on the expected improvement of each row, [N], at most 1.

        The more suspect values a row shares with a failed recipe, the smaller the factor, since one of these values is
        the cause of that failure.
        """
        trust = np.ones(table.count)
        for suspects in self._suspects:
            shared = sum((table.among(knob, value).astype(float) for knob, value in suspects.items()), np.zeros(()))
            trust = trust * (1 - SUSPECT_DISCOUNT * shared / len(suspects))
        return trust

    @cached_property
    def _suspects(self) -> list[dict[str, Any]]:
        """Returns, for every recipe that failed other than by memory, its values that occur in no recipe that ran.

        Of several that failed with the same message, returns the values that they have in common, if there are any.
        """
        ran = [trial.recipe for trial in self._trials if trial.status is Status.OK]
        causes: dict[str, list[dict[str, Any]]] = {}
        for trial in self._trials:
            if trial.status is Status.FAILED and ran:
                causes.setdefault(_wording(_evidence(trial)), []).append(_own_values(trial.recipe, ran))
        found = [_common(group) or each for group in causes.values() for each in group]
        return [suspects for suspects in found if suspects]

    def lost_by(self, incumbent: Recipe, changes: Mapping[str, Any]) -> Trial | None:
        """Returns a trial without a gain that made these changes, or a smaller step of the same single knob in the same
        direction; None if there is none. Trials that ran out of memory do not count: P(fits) already takes account of
        them. If the noise is above UNCLEAR_NOISE, only failed and rejected trials count."""
        return next(
            (trial for trial in self._trials if self._lost(trial) and _repeats(trial, incumbent, changes)), None
        )

    def undone_by(self, changes: Mapping[str, Any]) -> Trial | None:
        """Returns an accepted trial that gained by exactly the opposite of these changes; None if there is none."""
        for trial in self._trials:
            if trial.accepted and trial.changes and {k: was for k, (was, _) in trial.changes.items()} == changes:
                return trial
        return None

    def _lost(self, trial: Trial) -> bool:
        if trial.status is Status.OOM or trial.accepted:
            return False
        if trial.status in (Status.FAILED, Status.NOOP) or trial.verdict is Verdict.REJECTED:
            return True
        return Noise(trials=self._trials).half_spread() <= UNCLEAR_NOISE

    def without_gain(self, counts: Callable[[Trial], bool]) -> int:
        return without_gain(self._trials, counts)


def without_gain(trials: Sequence[Trial], counts: Callable[[Trial], bool]) -> int:
    """Returns the length of the last run of trials for which `counts` is true and which brought no gain.

    Ignores trials of the fit phase, which are not part of the search.
    """
    searched = (trial for trial in reversed(trials) if trial.proposal.phase is not Phase.FIT)
    return sum(1 for _ in takewhile(lambda trial: counts(trial) and not trial.accepted, searched))


def _own_values(recipe: Recipe, others: Sequence[Recipe]) -> dict[str, Any]:
    """Returns the values of a recipe that none of the others has."""
    return {
        knob: value
        for knob, (value, _) in recipe.diff(others[0]).items()
        if all(other.knob(knob) != value for other in others)
    }


def _common(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {knob: value for knob, value in group[0].items() if all(each.get(knob) == value for each in group)}


def _repeats(trial: Trial, incumbent: Recipe, changes: Mapping[str, Any]) -> bool:
    made = {knob: to for knob, (_, to) in trial.changes.items()}
    if not made:
        return False
    if made == changes:
        return True
    (knob, *more) = made
    if more or set(changes) != {knob}:
        return False
    domain = KNOBS[knob].domain.kind if knob in KNOBS else ""
    (was, lost), now, wanted = trial.changes[knob], incumbent.knob(knob), changes[knob]
    if domain not in ("int", "float") or not all(isinstance(value, int | float) for value in (was, now, lost, wanted)):
        return False
    return bool((was < lost and now < lost <= wanted) or (lost < was and wanted <= lost < now))


def refusals_of(trials: Sequence[Trial]) -> tuple[TrainerRefusal, ...]:
    """Returns the refusals of missing software, then one per cause, in the order of the trials; causes are not searched
    before any recipe has reached a training step."""
    missing = tuple(refusals_of_missing_software(trials))
    further = [trial.recipe for trial in trials if _got_further(trial)]
    if not further:
        return missing
    causes: dict[str, list[tuple[Trial, str]]] = {}
    for trial in trials:
        if failure := _refusing(trial):
            causes.setdefault(_wording(failure.evidence), []).append((trial, failure.evidence))
    return (*missing, *(found for refused in causes.values() for found in _learned(refused, further)))


def _learned(refused: Sequence[tuple[Trial, str]], further: Sequence[Recipe]) -> Iterator[TrainerRefusal]:
    """Yields the refusals of one message: of the knobs that are suspect in all refused recipes; if there are none, one
    refusal per recipe, of its own suspect knobs."""
    suspects = [_suspects_of(trial.recipe, further) for trial, _ in refused]
    common = [knob for knob in suspects[0] if all(knob in others for others in suspects)]
    groups = [list(range(len(refused)))] if common else [[at] for at in range(len(refused))]
    for group in groups:
        trial, evidence = refused[group[0]]
        values = {
            knob: tuple(dict.fromkeys(suspects[at][knob] for at in group)) for knob in (common or suspects[group[0]])
        }
        if narrowed := _narrowed(values, evidence):
            yield TrainerRefusal(
                values=_within_layout(narrowed, trial, evidence), trial=trial.number, evidence=evidence
            )


def _suspects_of(recipe: Recipe, further: Sequence[Recipe]) -> dict[str, Any]:
    """Returns the values that act in the recipe and in none of `further`, the recipes that got further."""
    now = {knob: acting(recipe, knob) for knob in KNOBS}
    return {
        knob: value
        for knob, value in now.items()
        if value is not INACTIVE and all(acting(other, knob) != value for other in further)
    }


def _narrowed(values: dict[str, tuple[Any, ...]], evidence: str) -> dict[str, tuple[Any, ...]]:
    """Returns the values of the knobs that the trainer's message names; all of them if it names none."""
    return {knob: each for knob, each in values.items() if _names(evidence, knob, each)} or values


def _names(evidence: str, knob: str, values: Sequence[Any]) -> bool:
    words = set(re.findall(r"[a-z0-9]+", evidence.lower()))
    if {word for word in knob.lower().split("_") if word not in COMMON_WORDS} <= words:
        return True
    run_together = re.sub(r"[\W_]", "", evidence.lower())
    texts = [re.sub(r"[\W_]", "", value.lower()) for value in values if isinstance(value, str)]
    return any(len(text) >= SHORTEST_VALUE and text in run_together for text in texts)


def _within_layout(values: dict[str, tuple[Any, ...]], trial: Trial, evidence: str) -> dict[str, tuple[Any, ...]]:
    """Restricts a refusal of a single number that the message does not name to the layout in which it was refused."""
    if len(values) > 1:
        return values
    ((knob, seen),) = values.items()
    is_number = isinstance(seen[0], int | float) and not isinstance(seen[0], bool)
    if not is_number or len(seen) > 1 or (knob not in BATCH and _names(evidence, knob, seen)):
        return values
    return {each: (acting(trial.recipe, each),) for each in LAYOUT} | values


def _refusing(trial: Trial) -> Failure | None:
    """Returns the failure with which the trainer refused to start; None if the trial ended otherwise.

    A trial without a burst violated a rule of this program, not of the trainer.
    """
    failures = [outcome.failure for outcome in trial.outcomes if outcome.failure]
    if trial.status is not Status.FAILED or not trial.bursts or not failures:
        return None
    last = failures[-1]
    return last if last.kind in REFUSED_BY_TRAINER and last.phase in BEFORE_A_STEP else None


def _got_further(trial: Trial) -> bool:
    """Returns true if the trial reached a training step: whatever happened then, the trainer had accepted the
    recipe."""
    return any(each.failure is None or each.failure.phase not in BEFORE_A_STEP for each in trial.outcomes)


def _evidence(trial: Trial) -> str:
    return next((outcome.failure.evidence for outcome in reversed(trial.outcomes) if outcome.failure), "")


def _wording(evidence: str) -> str:
    """Returns the evidence in lower case without numbers, so that messages of the same cause compare equal."""
    return re.sub(r"\W*\d[\d.,]*\W*", " ", evidence.lower()).strip()
