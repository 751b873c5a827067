"""The product's answer to one row of `guides.csv`, and the recipes and comparisons that rows share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.published_runs import TUNED_SETTINGS
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

EVEN_LOAD: dict[str, Any] = {**TUNED_SETTINGS, "moe_permute_fusion": True}


UNKNOWN = ("no published run has", "no calibrated run has")  # first words of an estimate's notes on unmodelled features


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one row.

    `agrees` is None if the row cannot be computed; `says` then has the reason. `unknown` is an estimate's note on
    unmodelled features, for a figure that disagrees.
    """

    says: str
    agrees: bool | None
    unknown: str = ""

    @property
    def verdict(self) -> str:
        if self.agrees is False and self.unknown:
            return f"not known, and said: {self.unknown}"
        return {True: "agrees", False: "DISAGREES", None: "cannot be computed"}[self.agrees]


Ask = Callable[[], Answer]


def recipe_of(
    model: str,
    gpu: str | dict[str, Any],
    gpus: int,
    *,
    each: int,
    training: dict[str, Any],
    knobs: dict[str, Any],
    **sizes: int,
) -> Recipe:
    """Returns a recipe on `gpus` GPUs, `each` per node.

    `sizes`: parallel sizes by their short names. Raises BadInputError for an unknown model or GPU.
    """
    data = {
        "name": f"{model}-{gpus}-gpus",
        "model": model,
        "cluster": {"gpu": gpu, "nodes": gpus // each, "gpus_per_node": each},
        "training": {"micro_batch_size": 1, **training},
        "parallelism": sizes,
        "knobs": knobs,
    }
    return recipe_from(Source(name="guides", data=data))


def compared(found: Sequence[float], published: Sequence[float], *, within: float) -> Answer:
    """Returns the answer for figures that should each be within a fraction of the published ones."""
    errors = [ours / theirs - 1 for ours, theirs in zip(found, published, strict=True)]
    pairs = zip(found, published, errors, strict=True)
    said = ", ".join(f"{ours:,.4g} for {theirs:,.4g} ({error:+.0%})" for ours, theirs, error in pairs)
    return Answer(says=said, agrees=all(abs(error) <= within for error in errors))


def timed(recipes: Sequence[Recipe], published: Sequence[float], *, within: float) -> Answer:
    """Returns the answer of TFLOPS/GPU that should lie within a share of the published ones. If all figures that do not
    are inside their estimates' intervals, `unknown` has the features that these estimates name as in no published
    run."""
    found = [estimate_time(recipe) for recipe in recipes]
    rates = [time.model_tflops_per_gpu for time in found]
    answer = compared(rates, published, within=within)
    apart = [abs(ours / theirs - 1) for ours, theirs in zip(rates, published, strict=True)]
    wrong = [time for time, error in zip(found, apart, strict=True) if error > within]
    inside = all(error <= time.spread for time, error in zip(found, apart, strict=True))
    notes = [note for time in wrong for note in time.assumptions if note.startswith(UNKNOWN)]
    named = inside and all(any(note.startswith(UNKNOWN) for note in time.assumptions) for time in wrong)
    return replace(answer, unknown="; ".join(dict.fromkeys(notes)) if named else "")


def together(*answers: Answer) -> Answer:
    """Returns one answer for several: it agrees if all do, and is None if none disagrees and one is None."""
    verdicts = [answer.agrees for answer in answers]
    agrees = False if False in verdicts else None if None in verdicts else True
    wrong = [answer.unknown for answer in answers if answer.agrees is False]
    unknown = "; ".join(dict.fromkeys(wrong)) if all(wrong) else ""
    return Answer(says="; ".join(answer.says for answer in answers), agrees=agrees, unknown=unknown)


def holds(statements: dict[str, bool]) -> Answer:
    """Returns the answer for statements that should all be true."""
    said = "; ".join(f"{statement}: {'yes' if true else 'no'}" for statement, true in statements.items())
    return Answer(says=said, agrees=all(statements.values()))
