"""Rules of the burst: its engine must exist."""

from trainer.recipe.engines import ENGINES
from trainer.recipe.rules.rule import Rule, example

ROWS = (
    Rule(
        id="engine-exists",
        knobs=(),
        broken=lambda recipe: recipe.burst.engine not in ENGINES,
        message="there is no engine {engine}",
        hint=f"set burst.engine to one of {', '.join(ENGINES)}",
        source="trainer/recipe/engines.py ENGINES",
        breaking=example(engine="megatrn"),
        passing=example(engine="simulated"),
    ),
)
