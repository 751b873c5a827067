"""Hierarchical context parallelism: what both frameworks' exports write of it, their imports read."""

from __future__ import annotations

from tests.trainer.estimate.time.test_time import recipe_of
from trainer.frameworks.megatron_bridge.overrides import overrides
from trainer.frameworks.megatron_bridge.read import read_overrides
from trainer.frameworks.megatron_lm.read import read
from trainer.frameworks.megatron_lm.spelling import knob_spellings

KNOBS = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": (8, 2)}


def test_an_import_reads_the_levels_that_an_export_writes() -> None:
    recipe = recipe_of(nodes=2, seq_length=65536, context_parallel_size=16).replace({**KNOBS})
    words = [word for spelling in knob_spellings(recipe) for word in spelling.words or ()]
    at = words.index("--hierarchical-context-parallel-sizes")
    assert words[at + 1 : at + 3] == ["8", "2"]
    for reading in (read(words, world_size=16), read_overrides(overrides(recipe))):
        assert {name: reading.knobs[name] for name in KNOBS} == KNOBS
