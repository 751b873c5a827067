"""Checks that work without a measured rate is named, and that sparse attention is not priced as full attention."""

from __future__ import annotations

from tests.rows import for_every_row
from trainer.estimate.time.estimate import TimeEstimate, estimate_time
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

SAID = {
    "deepseek-v3.2": "the indexer's scores and top-k of sparse attention",
    "glm-5": "the indexer's scores and top-k of sparse attention",
    "deepseek-v4-flash": "compressed sparse attention; window attention with one key for all heads; mixing of residual",
    "qwen3-next-80b-a3b": "",
    "qwen3-30b-a3b": "",
}


def estimated(model: str, seq_length: int = 4096) -> TimeEstimate:
    data = {
        "name": "r",
        "model": model,
        "cluster": {"gpu": "h100", "nodes": 32},
        "training": {"seq_length": seq_length, "global_batch_size": 256},
        "parallelism": {"ep": 8},
    }
    return estimate_time(recipe_from(Source(name="r", data=data)))


@for_every_row(SAID)
def test_work_without_a_rate_is_named(model: str) -> None:
    notes = [note for note in estimated(model).assumptions if note.startswith("not priced")]
    assert SAID[model] in " ".join(notes)
    assert bool(notes) == bool(SAID[model])


def test_sparse_attention_takes_the_time_of_the_positions_that_it_reads() -> None:
    sparse, plain = (
        {length: estimated(model, length).by_part["compute_s"] / length for length in (2048, 65536)}
        for model in ("deepseek-v3.2", "deepseek-v3")
    )
    assert (
        plain[2048] < sparse[2048] < 1.1 * plain[2048]
    )  # sparse attention has as many positions, and the indexer's projections in addition
    assert sparse[65536] < plain[65536] / 2
