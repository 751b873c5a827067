"""Edits of a recipe keep its comments, its order and everything that need not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from autotune.check.edited import edited
from autotune.check.fixed import REWRITTEN, fixed_text
from autotune.cli import main
from trainer.legality import findings_of, nearest_legal
from trainer.recipe import load_recipe
from trainer.recipe.rules import RULES
from trainer.recipe.rules.examples import recipe_of

COMMENTED = """\
# what we train in March; ask Ana before changing the batch
model: qwen3-30b-a3b   # the preset

cluster: {gpu: h100, nodes: 2}     # two nodes only
parallelism:
  # tried 4 once, did not fit
  tp: 3      # heads?
  ep: 8

# nothing else is set
tune:
  patience: 3
"""


def test_comments_order_and_spelling_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ours.yaml").write_text(COMMENTED)
    main(["check", "ours.yaml", "--fix", "-o", "fixed.yaml"])
    fixed = Path("fixed.yaml").read_text()
    head = [line for line in fixed.splitlines() if line not in COMMENTED.splitlines()]
    kept = [line for line in COMMENTED.splitlines() if line not in fixed.splitlines()]
    assert kept == ["  tp: 3      # heads?"]
    assert any(line.startswith("  tp: ") and line.endswith("      # heads?") for line in head)
    nearest = nearest_legal(load_recipe("ours.yaml"))
    assert nearest is not None
    assert load_recipe("fixed.yaml").digest() == nearest.digest()


TEXTS = {
    "in its place": ("training:\n  micro_batch_size: 1  # a\n", "training:\n  micro_batch_size: 2  # a\n"),
    "in braces": ("training: {micro_batch_size: 1, seq_length: 8}", "training: {micro_batch_size: 2, seq_length: 8}"),
    "new in braces": ("training: {seq_length: 8, }  # b", "training: {seq_length: 8, micro_batch_size: 2, }  # b"),
    "new in empty braces": ("training: {}  # b", "training: {micro_batch_size: 2}  # b"),
    "new on a line": (
        "training:\n    seq_length: 8  # c\n# d\ntune: {}\n",
        "training:\n    seq_length: 8  # c\n    micro_batch_size: 2\n# d\ntune: {}\n",
    ),
    "behind a list": (
        "training:\n  a:\n    - 1\n    - 2\n\n# d\ntune: {}\n",
        "training:\n  a:\n    - 1\n    - 2\n  micro_batch_size: 2\n\n# d\ntune: {}\n",
    ),
    "a new section": ("a: 1  # e", "a: 1  # e\ntraining: {micro_batch_size: 2}"),
    "a new section in braces": ("{a: 1}", "{a: 1, training: {micro_batch_size: 2}}"),
    "an empty section": ("training:\nb: 1\n", "training: {micro_batch_size: 2}\nb: 1\n"),
    "lines of Windows": (
        "training:\r\n  micro_batch_size: 1\r\nb: 1\r\n",
        "training:\r\n  micro_batch_size: 2\r\nb: 1\r\n",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_knob_is_written_where_it_belongs(case: str) -> None:
    before, after = TEXTS[case]
    assert edited(before, {"micro_batch_size": 2}) == after


def test_several_knobs_and_values_of_every_kind_are_written() -> None:
    text = "parallelism: {tp: 2}\nknobs:\n  recompute_modules:\n  - mlp  # x\n  - moe\n  # y\n"
    values = {
        "tensor_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": None,
        "recompute_modules": ("core_attn",),
        "sequence_parallel": True,
        "moe_token_dispatcher_type": "flex",
    }
    read = yaml.safe_load(edited(text, values))
    assert read == {
        "parallelism": {"tp": 4, "virtual_pipeline_model_parallel_size": None},
        "knobs": {"recompute_modules": ["core_attn"], "sequence_parallel": True, "moe_token_dispatcher_type": "flex"},
    }


@pytest.mark.parametrize("style", ["as written", "every default"])
def test_values_that_break_a_rule_are_fixed_in_place(style: str, tmp_path: Path) -> None:
    fixed = 0
    for rule in RULES[:: 6 if style == "as written" else 12]:
        file = tmp_path / f"{rule.id}.yaml"
        file.write_text("# mine\n" + recipe_of(rule.breaking).to_yaml(resolved=style == "every default"))
        recipe = load_recipe(str(file))
        nearest = nearest_legal(recipe, findings_of)
        if nearest is None or nearest == recipe:
            continue
        text = fixed_text(str(file), nearest, recipe.diff(nearest), file=None)
        assert REWRITTEN not in text, rule.id
        assert "# mine\n" in text
        fixed += 1
    assert fixed >= 5


def test_a_file_that_the_change_does_not_fit_into_is_rewritten_and_says_so(tmp_path: Path) -> None:
    text = "model: qwen3-30b-a3b\ncluster: {gpu: h100, nodes: 2}\nx: &x {tp: 3, ep: 8}\nparallelism: *x\n"
    file = tmp_path / "a.yaml"
    file.write_text(text.replace("x: &x {tp: 3, ep: 8}\nparallelism: *x\n", "parallelism: {tp: 3, ep: 8}\n"))
    recipe = load_recipe(str(file))
    nearest = nearest_legal(recipe, findings_of)
    assert nearest is not None
    file.write_text(text)
    fixed = fixed_text(str(file), nearest, recipe.diff(nearest), file=None)
    assert REWRITTEN in fixed
    (tmp_path / "b.yaml").write_text(fixed)
    assert load_recipe(str(tmp_path / "b.yaml")).digest() == nearest.digest()
