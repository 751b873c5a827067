"""A fix: one known cure for a wall, as data that the policy ranks and the report explains.

Each file in `policies/fixes` defines one `FIX`; its `page` is shown in the documentation, by `diagnose` and in the
report. Its claim is a fraction of a wall's recoverable time, which bounds its gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analyzers.diagnosis import Wall
from policies.situation import BUBBLE_PART, EP_KINDS, LOAD_PART, MEASURES, STAGES_PART, Situation
from policies.trial import Phase
from trainer.recipe import Recipe

KnobChanges = dict[str, Any]

# Causes inside a wall (`WallFinding.parts`) that belong together for a fix.
EP = EP_KINDS
TP = ("tp",)
CP = ("cp",)
BUBBLE = ("pp", BUBBLE_PART)  # waiting for another stage: inside send/recv kernels, or as idle time
LOAD = (LOAD_PART,)  # waiting for the rank whose experts have most to do
STAGES = (STAGES_PART,)  # waiting for the stage that has most to do
DP = ("dp",)
RECOMPUTE = ("recompute",)
COPIES = ("offload_copies",)
GC = ("garbage_collection",)
LAUNCHES = (
    "launching",
    "operators",
    "python",
    "outside_calls",
)  # host activities between kernels that a fix can reduce


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The fraction (0..1) of a wall's recoverable time, or of its `parts`, that a fix is expected to give back."""

    wall: Wall
    parts: tuple[str, ...] = ()
    fraction: float
    source: str

    def us(self, situation: Situation) -> float:
        return self.fraction * situation.recoverable_us(self.wall, self.parts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A fix explained to users: plain text, code between backticks, without line breaks."""

    summary: str  # the fix in one sentence
    what: str  # what it is, by its knobs
    shows: str  # how its wall shows in traces, or in what fails
    costs: str
    not_when: str  # when it does not apply
    source: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The evidence in the trace after a burst that the fix acted: a measure that must move by the fraction `at_least`.

    `moves` is -1 (falls) or +1 (rises). A measure that is absent or too small before (under 0.5 % of the step) proves
    nothing either way.
    """

    measure: str
    moves: int
    at_least: float = 0.05

    def missing(self, before: Situation, after: Situation) -> str | None:
        """Returns how the trace shows that the fix did not act; None if it acted, or the trace cannot show it."""
        measure = MEASURES[self.measure]
        was, now = measure.of(before), measure.of(after)
        if was is None or now is None or was < measure.floor(before):
            return None
        change = (now - was) / was
        if change * self.moves >= self.at_least:
            return None
        wanted = "fall" if self.moves < 0 else "rise"
        return f"{measure.words} should {wanted} and went from {was:.0f} to {now:.0f} {measure.unit}"


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One known fix for a wall.

    `changes` lists knob changes in order of preference; the policy takes the first that is legal, not frozen, new and
    predicted to fit. `matches` recognises the fix between a recipe before and one after by its `knobs`, whatever else
    moved. `slowdown` is its cost in step time when used only to save memory; `chance` how often it helped against its
    wall (both from the named sources). Fixes of the fit phase are combined in `fit_order`; a `last_resort` only when
    the others do not make the recipe fit.
    """

    name: str
    title: str
    page: Page
    phases: tuple[Phase, ...]
    fit_order: int | None = None  # None: not in the fit phase
    last_resort: bool = False
    claims: tuple[Claim, ...] = ()
    knobs: tuple[str, ...]
    matches: Callable[[Recipe, Recipe], bool]
    precondition: Callable[[Situation], str | None]
    changes: Callable[[Situation], list[KnobChanges]]
    slowdown: float = 0.0
    chance: float = 0.5
    proof: Proof | None = None  # None: the proof is `Outcome.acting`, read from the built model

    @property
    def walls(self) -> tuple[Wall, ...]:
        return tuple(dict.fromkeys(claim.wall for claim in self.claims))

    def bound_us(self, situation: Situation, wall: Wall) -> float:
        """Returns the most that the fix could give back on a wall, µs: the wall's recoverable time, plus the largest
        loss outside the walls (such as the bubble) that it acts on."""
        parts = {part for claim in self.claims for part in claim.parts if claim.wall is wall}
        outside = (us for part, us in situation.losses_outside_walls.items() if part in parts)
        return situation.recoverable_us(wall) + max(outside, default=0.0)

    def claimed_us(self, situation: Situation) -> tuple[Wall, float] | None:
        """Returns the wall on which the fix gives most back, and how many µs; None if it claims nothing.

        Claims on one wall add up, to at most `bound_us`; claims on several walls do not add up.
        """
        by_wall = {
            wall: min(
                sum(claim.us(situation) for claim in self.claims if claim.wall is wall),
                self.bound_us(situation, wall),
            )
            for wall in self.walls
        }
        best = max(by_wall.items(), key=lambda item: item[1], default=None)
        return best if best and best[1] > 0 else None


def gain_of(recovered_us: float, step_us: float) -> float:
    """Returns the throughput gained when a step of `step_us` gives `recovered_us` back, as a fraction."""
    if step_us <= 0 or recovered_us <= 0:
        return 0.0
    left = max(step_us - recovered_us, 0.01 * step_us)  # keeps the divisor positive
    return step_us / left - 1.0
