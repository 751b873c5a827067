"""Writes one choice of a plan as a recipe, for `plan -o`."""

from __future__ import annotations

from autotune.looks.quantities import gpu_or_rank, tokens_per_s
from autotune.plan.document import Plan, memory_words
from trainer.errors import BadInputError, Problem
from trainer.values import knob_value


def chosen_text(plan: Plan, number: int) -> str:
    """Returns the recipe of choice `number`, counted from 1, with a comment on its predictions and changes.

    Raises BadInputError if the plan has no such choice.
    """
    if number > len(plan.choices):
        have = f"there are {len(plan.choices)}" if plan.choices else "no layout is legal: see `moe-autotune check`"
        raise BadInputError(Problem(where="--choice", what=f"the plan has no choice {number}", hint=have))
    choice = plan.choices[number - 1]
    against = plan.recipe.diff(choice.recipe).items()
    rate = tokens_per_s(choice.tokens_per_s_per_gpu, unit=gpu_or_rank(plan.recipe.cluster.gpu_name))
    lines = (
        f"Choice {number} of moe-autotune plan: about {rate}, "
        f"{memory_words(choice)}{'' if choice.fits else ': it does not fit'}",
        *(f"{name}: {knob_value(to)}, not {knob_value(here)}" for name, (here, to) in against),
    )
    return "".join(f"# {line}\n" for line in lines) + choice.recipe.to_yaml()
