"""Every knob moves the estimate of time or memory, or is listed with the part that does not know it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.trainer.engines.test_simulated_knobs import CONTEXTS, INERT, MOVES, base, seen, unmoved
from trainer.estimate.candidates import one
from trainer.estimate.memory.estimate import estimate_memory, memory_of
from trainer.estimate.not_priced import not_priced, table
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS

# priced, and without an effect on the estimate where the knob is moved
ALIKE = {
    "recompute_granularity": "fused attention keeps nothing that its recompute frees",
    "cpu_offloading": "layers in full recompute are counted as leaving nothing to move",
    "cpu_offloading_num_layers": "as cpu_offloading",
    "overlap_moe_expert_parallel_comm": "a pipeline without chunks refuses it",
    "fp8_param_gather": "MXFP8 weights are gathered in 16 bits",
}


def _estimated(recipe: Recipe) -> dict[str, Any]:
    memory = estimate_memory(recipe)
    return {"time": estimate_time(recipe).by_part, "memory": (memory.by_part, memory.upper_gib, memory.outside_gib)}


def _of_ranks(recipe: Recipe) -> list[Any]:
    """Returns the memory of all pipeline ranks by part, and what is outside the allocator."""
    table = memory_of(one(recipe))
    return [np.asarray(gib).tolist() for gib in (*table.by_part.values(), table.outside_gib)]


def test_a_knob_moves_the_estimate_or_is_listed_with_what_does_not_know_it() -> None:
    unmoved = [_estimated(base().replace(context)) for context in CONTEXTS]
    wrong = []
    for name, (context, value) in MOVES.items():
        now = _estimated(base().replace(CONTEXTS[context]).replace({name: value}))
        moved = {part for part in now if now[part] != unmoved[context][part]}
        parts = table()[name]["parts"].split() if name in table() else None
        if (parts is None and not moved) or moved & set(parts or ()):
            wrong.append(f"{name}: moves {sorted(moved)}, listed {parts}")
    assert not wrong
    assert set(table()) <= set(KNOBS)
    assert {*INERT} <= {*table()}


def test_what_a_knob_moves_in_the_simulation_it_moves_in_the_estimate_or_is_listed() -> None:
    """Compares time and memory separately; the simulation has formulas of its own."""
    silent = []
    for name, (context, value) in MOVES.items():
        before = base().replace(CONTEXTS[context])
        after = before.replace({name: value})
        (step, *memory), (step_after, *memory_after) = unmoved(context), seen(after)
        acts = {"time": step != step_after, "memory": memory != memory_after}
        was, now = ({"time": estimate_time(each).step_s, "memory": _of_ranks(each)} for each in (before, after))
        listed = table()[name]["parts"].split() if name in table() else ()
        silent += [(name, part) for part in now if acts[part] and now[part] == was[part] and part not in listed]
    assert {name for name, _ in silent} == {*ALIKE}, silent


def test_a_recipe_lists_what_it_sets_and_nobody_prices() -> None:
    plain = base()
    listed = {each.setting: each for each in not_priced(plain.replace({"bucket_size": 10_000_000, "nccl_ub": True}))}
    assert {"bucket_size", "nccl_ub"} <= {*listed}
    assert listed["nccl_ub"].parts == ("time", "memory")
    assert "nccl_ub" not in {each.setting for each in not_priced(plain)}
    assert all(effective(plain, each.setting) != KNOBS[each.setting].default for each in not_priced(plain))


def test_packed_sequences_are_said_not_to_be_priced() -> None:
    from autotune.estimate.document import estimated

    for command, settings in ((["train.py", "--sft"], {"--sft"}), (["train.py"], set())):
        data = base().model_dump() | {"trainer": {"kind": "megatron-lm", "command": command}}
        found = estimated(Recipe.model_validate(data)).document["not_priced"]
        assert {each.setting for each in found if "packed" in each.why} == settings


def test_an_optimizer_that_is_not_adam_is_said() -> None:
    for command in (["train.py", "--optimizer", "dist_muon"], ["run.py", "optimizer.optimizer=muon"]):
        data = base().model_dump() | {"trainer": {"kind": "megatron-lm", "command": command}}
        (found,) = [each for each in not_priced(Recipe.model_validate(data)) if each.setting.startswith("optimizer")]
        assert found.setting in ("optimizer dist_muon", "optimizer muon")
        assert "Newton-Schulz" in found.why
