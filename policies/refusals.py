"""What the trainer of this machine refuses, learned from bursts that ended before a step: no other recipe with the same
cause is paid for.

The cause is a knob's value that no recipe that got further has had. Where there are several, what the trainer said
names it (`sequence parallel is not supported by torch LayerNorm`), or a second refusal with the same words has fewer of
them in common; until then only recipes with all of them are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.trial import Status, Trial
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS

OF_THE_TRAINER = (FailureKind.CONFIG, FailureKind.IMPORT)
BEFORE_A_STEP = (None, BurstPhase.START, BurstPhase.INIT)
# what a number is refused beside, until the trainer has refused it twice or has named it
LAYOUT = (*(name for name, knob in KNOBS.items() if knob.section == "parallelism"), "micro_batch_size")
BATCH = ("micro_batch_size", "global_batch_size")  # named beside others that they have to divide: never alone at fault
_AT_REST = object()  # of a knob that cannot act beside the others
_SAY_LITTLE = frozenset({"moe", "use", "size", "model", "type", "num", "impl", "enable"})
_SHORTEST = 5  # letters of a value that is looked for in what the trainer said
LONGEST = 120  # letters of it in a reason


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A recipe with one of these values of each of these knobs is refused, as `trial` was."""

    values: Mapping[str, tuple[Any, ...]]
    trial: int
    evidence: str

    def meets(self, recipe: Recipe) -> bool:
        return all(_acting(recipe, knob) in values for knob, values in self.values.items())

    def __str__(self) -> str:
        named = ", ".join(f"{knob} {' or '.join(map(str, values))}" for knob, values in self.values.items())
        return f"trial {self.trial} was refused for {named}: {self.evidence[:LONGEST]}"


def refusals(trials: Sequence[Trial]) -> tuple[Refused, ...]:
    """One a cause, in the order in which they were learnt; none while no recipe has got to a step."""
    further = [trial.recipe for trial in trials if _got_further(trial)]
    if not further:
        return ()
    causes: dict[str, list[tuple[Trial, str]]] = {}
    for trial in trials:
        if failure := _refusal(trial):
            causes.setdefault(_wording(failure.evidence), []).append((trial, failure.evidence))
    return tuple(found for told in causes.values() for found in _learnt(told, further))


def _learnt(told: Sequence[tuple[Trial, str]], further: Sequence[Recipe]) -> Iterator[Refused]:
    """What trials refused in the same words have in common; what each has, where that is nothing."""
    suspects = [_suspects(trial.recipe, further) for trial, _ in told]
    common = [knob for knob in suspects[0] if all(knob in others for others in suspects)]
    groups = [list(range(len(told)))] if common else [[at] for at in range(len(told))]
    for group in groups:
        trial, evidence = told[group[0]]
        values = {
            knob: tuple(dict.fromkeys(suspects[at][knob] for at in group)) for knob in (common or suspects[group[0]])
        }
        if narrowed := _narrowed(values, evidence):
            yield Refused(values=_beside_layout(narrowed, trial, evidence), trial=trial.number, evidence=evidence)


def _suspects(recipe: Recipe, further: Sequence[Recipe]) -> dict[str, Any]:
    """Values that act in the recipe and that acted in none that got further."""
    now = {knob: _acting(recipe, knob) for knob in KNOBS}
    return {
        knob: value
        for knob, value in now.items()
        if value is not _AT_REST and all(_acting(other, knob) != value for other in further)
    }


def _acting(recipe: Recipe, knob: str) -> Any:
    value = effective(recipe, knob) if acts(recipe, knob) else _AT_REST
    return tuple(value) if isinstance(value, list) else value


def _narrowed(values: dict[str, tuple[Any, ...]], evidence: str) -> dict[str, tuple[Any, ...]]:
    """Those that the trainer named, where it named any."""
    return {knob: each for knob, each in values.items() if _names(evidence, knob, each)} or values


def _names(evidence: str, knob: str, values: Sequence[Any]) -> bool:
    words = set(re.findall(r"[a-z0-9]+", evidence.lower()))
    if {word for word in knob.lower().split("_") if word not in _SAY_LITTLE} <= words:
        return True
    run_together = re.sub(r"[\W_]", "", evidence.lower())
    texts = [re.sub(r"[\W_]", "", value.lower()) for value in values if isinstance(value, str)]
    return any(len(text) >= _SHORTEST and text in run_together for text in texts)


def _beside_layout(values: dict[str, tuple[Any, ...]], trial: Trial, evidence: str) -> dict[str, tuple[Any, ...]]:
    """A number that is seen refused once, and not named, is refused in that layout alone."""
    if len(values) > 1:
        return values
    ((knob, seen),) = values.items()
    is_number = isinstance(seen[0], int | float) and not isinstance(seen[0], bool)
    if not is_number or len(seen) > 1 or (knob not in BATCH and _names(evidence, knob, seen)):
        return values
    return {each: (_acting(trial.recipe, each),) for each in LAYOUT} | values


def _refusal(trial: Trial) -> Failure | None:
    """Why its trainer would not start; None for every other end. A trial without a burst broke a rule of ours."""
    failures = [outcome.failure for outcome in trial.outcomes if outcome.failure]
    if trial.status is not Status.FAILED or not trial.bursts or not failures:
        return None
    last = failures[-1]
    return last if last.kind in OF_THE_TRAINER and last.phase in BEFORE_A_STEP else None


def _got_further(trial: Trial) -> bool:
    """It took a step, or tried to: whatever ended it then, its trainer took the recipe."""
    return any(each.failure is None or each.failure.phase not in BEFORE_A_STEP for each in trial.outcomes)


def _wording(evidence: str) -> str:
    """The same cause in other numbers reads the same."""
    return re.sub(r"\W*\d[\d.,]*\W*", " ", evidence.lower()).strip()
