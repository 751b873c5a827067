"""Rules over columns: the verdict on every row is that of `check` on its recipe, for legal and illegal rows alike."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trainer.estimate.candidates import table
from trainer.estimate.plan.legality import broken
from trainer.estimate.plan.space import foundation, layouts, settings
from trainer.recipe.load import recipe_from
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.schema import Recipe
from trainer.recipe.source import Source

ROWS, CHECKED = 2000, 300
MIXED: dict[str, tuple[Any, ...]] = {
    "tensor_model_parallel_size": (1, 2, 3, 8),
    "pipeline_model_parallel_size": (1, 2, 4, 5),
    "context_parallel_size": (1, 2, 8),
    "expert_model_parallel_size": (1, 6, 8, 64),
    "expert_tensor_parallel_size": (None, 1, 2),
    "virtual_pipeline_model_parallel_size": (None, 2, 3),
    "pipeline_model_parallel_layout": (None, "Et*30|t*31mL", "nonsense"),
    "micro_batch_size": (1, 2, 3),
    "sequence_parallel": (False, True),
    "recompute_granularity": (None, "selective", "full"),
    "recompute_modules": (None, ("moe",), ("mla_up_proj", "layernorm")),
    "overlap_moe_expert_parallel_comm": (False, True),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "cuda_graph_impl": ("none", "transformer_engine"),
    "cuda_graph_scope": (None, ("attn",), ("moe",), ("moe_preprocess",)),
}


def recipe(**fields: Any) -> Recipe:
    data = {"name": "r", "model": "deepseek-v3", "cluster": {"gpu": "h100", "nodes": 16}}
    return recipe_from(Source(name="r", data=data | fields))


def errors(one: Recipe) -> set[str]:
    return {finding.rule for finding in check(one) if finding.kind is FindingKind.ERROR}


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-30b-a3b", "nemotron-3-nano-30b-a3b"])
def test_random_rows_break_exactly_the_rules_that_their_recipes_break(model: str) -> None:
    rng = random.Random(0)
    columns = {name: [rng.choice(values) for _ in range(ROWS)] for name, values in MIXED.items()}
    rows = table(recipe(model=model), columns)
    verdicts, left_open = broken(rows)
    assert not left_open
    for row in range(CHECKED):
        assert {rule for rule, said in verdicts.items() if said[row]} == errors(rows.recipe(row))


def test_generated_layouts_are_judged_as_check_judges_them_legal_or_not() -> None:
    rng = random.Random(1)
    base = foundation(recipe())
    rows, fixed = layouts(base), base
    verdicts, _ = broken(rows)
    seen = set()
    for row in rng.sample(range(rows.count), CHECKED):
        ours = {rule for rule, said in verdicts.items() if said[row]}
        assert ours == errors(fixed.replace(rows.changes(row)))
        seen.add(bool(ours))
    assert seen == {False, True}


def test_a_rule_that_reads_an_undecided_knob_stays_open() -> None:
    base = foundation(recipe())
    rows, options = layouts(base), settings(base)
    _, left_open = broken(rows, undecided=frozenset(options.columns))
    names = {rule.id for rule in left_open}
    assert "ep-overlap-interleaving" in names
    assert "world-attention-grid" not in names
