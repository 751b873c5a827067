"""Advises on each cause of a gap: the gain of a change, its flags in a launch script, and commands that show more."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from autotune.gap.comparing import Compared
from trainer.errors import BadInputError
from trainer.estimate.gap.losses import FORCED, Loss
from trainer.estimate.gap.parts import Cause as PartCause
from trainer.estimate.gap.waterfall import Gap, Kind, LevelName
from trainer.estimate.memory.estimate import estimate_memory
from trainer.frameworks.megatron_lm.spelling import knob_spellings
from trainer.legality import broken_rules
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

TRACING = "--profile --use-pytorch-profiler --profile-ranks 0 --profile-step-start 10 --profile-step-end 12"
BALANCING = "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice on one cause.

    `add`, `remove`: flags of a launch script in Megatron-LM's spelling; `set_outside`: settings without a flag.
    `numerics`: effect of the change on training; `gain`: fraction of throughput by the change alone; `legal`: it breaks
    no rule that the recipe keeps; `fits`: by estimate. These four are None if no setting is to change, `gain` and
    `fits` also if they are unknown.
    """

    gain: float | None = None
    legal: bool | None = None
    fits: bool | None = None
    numerics: str | None = None
    add: list[str] = []
    remove: list[str] = []
    set_outside: list[str] = []
    commands: list[str] = []


def advice_of(loss: Loss, found: Compared) -> Advice:
    """Returns the advice on one cause."""
    own = found.own
    change = next((gap for gap in loss.gaps if gap.kind is Kind.SETTING), None)
    if own is None or change is None or FORCED in change.knobs:
        return Advice(add=list(_flags(loss)), commands=list(_commands(loss, found)))
    changed = own.replace({name: there for name, (_, there) in change.knobs.items()})
    add, remove = _words(own, changed)
    return Advice(
        gain=_gain(loss, change, found),
        legal=broken_rules(changed) <= broken_rules(own),
        fits=_fits(changed),
        numerics=_numerics(change),
        add=add,
        remove=remove,
        set_outside=[name for name in change.knobs if KNOBS[name].acts in ("environment", "process")],
        commands=list(_commands(loss, found)),
    )


def _gain(loss: Loss, change: Gap, found: Compared) -> float | None:
    """Returns the gain of throughput by the change alone, as a fraction: of the measured step where traced parts
    correct what the change saves or estimates are scaled to it, else of the estimate of the user's recipe.
    None if the change was not estimated alone, or would save the whole step."""
    own = next((level for level in found.levels if level.name is LevelName.OWN), None)
    step_s = (found.levels[0] if own is None or found.rank is not None else own).time.s
    if change.alone is None:
        return None
    saved_s = change.alone.s + sum(gap.time.s for gap in loss.gaps if gap.kind is Kind.PART)
    return step_s / (step_s - saved_s) - 1 if saved_s < step_s else None


def _fits(recipe: Recipe) -> bool | None:
    limit = recipe.memory_limit_gib
    if limit is None:
        return None
    found = estimate_memory(recipe)
    return found.upper_gib + found.outside_gib <= limit


def _numerics(change: Gap) -> str:
    """Returns the strongest effect on training among the change's knobs, from training-equivalent to benchmark-only."""
    kinds = ("benchmark-only", "numerics-changing", "training-equivalent")
    return next(
        kind for kind in kinds if any(KNOBS[name].numerics == kind for name in change.knobs) or kind == kinds[2]
    )


def _words(own: Recipe, changed: Recipe) -> tuple[list[str], list[str]]:
    """Returns the flags that the change adds to a launch script, and those that it removes, each with its values."""
    try:
        before, after = ({each.name: each.words for each in knob_spellings(recipe)} for recipe in (own, changed))
    except BadInputError:
        return [], []
    moved = [name for name in after if after[name] != before.get(name)]
    add = [" ".join(after[name]) for name in moved if after[name]]
    flags = {text.split(" ")[0] for text in add}
    gone = [" ".join(before[name]) for name in moved if before.get(name)]
    return add, [text for text in gone if text.split(" ")[0] not in flags]


def _flags(loss: Loss) -> Iterator[str]:
    if loss.name == PartCause.ROUTER:
        yield BALANCING


def _commands(loss: Loss, found: Compared) -> Iterator[str]:
    side = found.side
    traced = found.trace if found.trace is not None else side.name if side.source in ("trace", "study") else None
    if loss.kind is Kind.UNEXPLAINED and traced is None:
        yield f"record a trace ({TRACING}), then moe-autotune gap {side.words} --trace TRACE"
    elif loss.kind is Kind.PART and traced is not None:
        yield f"moe-autotune diagnose {traced}"
    elif loss.kind is Kind.SETTING:
        yield from _of_settings(found)
    elif loss.kind is Kind.SOFTWARE and "--software" not in side.options:
        yield f"moe-autotune gap {side.words} --software RELEASE"


def _of_settings(found: Compared) -> Iterator[str]:
    if found.side.source == "recipe":
        yield f"moe-autotune check {found.side.name}"
    yield f"moe-autotune gap {found.side.words} -o attainable.yaml"
