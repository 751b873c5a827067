"""Writes the published runs that the package ships, from the collected rows and their known settings.

    python -m benchmarks.published_table

Only MoE models without scans are written. The file is `trainer/estimate/gap/published.csv`; a test compares it with
these rows.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.places import DATA, ROOT, data_file, table_rows
from benchmarks.published_runs import Run, read_runs
from trainer.recipe import Recipe
from trainer.recipe.models import presets

TABLE = ROOT / "trainer" / "estimate" / "gap" / "published.csv"
COLUMNS = (
    *("row", "release", "model", "mtp", "gpu", "nodes", "gpus_per_node", "tokens_per_s_per_gpu"),
    *("model_tflops_per_gpu", "trusted", "settings", "source"),
)


def table(*, facts: Path = DATA) -> str:
    """Returns the text of published.csv."""
    sources = {row["row_id"]: _source(row) for row in table_rows(data_file("published_runs.csv", folder=facts))}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows([run for run in read_runs(facts=facts)[0] if run.family == "MoE"], sources))
    return text.getvalue()


def _rows(runs: list[Run], sources: dict[str, str]) -> Iterator[dict[str, object]]:
    for run in runs:
        recipe, name = run.recipe, run.cell.partition(" on ")[0]
        bare = Recipe.model_validate({"name": run.row, "model": name, "cluster": recipe.cluster.model_dump()})
        yield {
            "row": run.row,
            "release": run.release,
            "model": name,
            "mtp": "yes" if recipe.architecture == presets()[name] else "no",
            "gpu": recipe.cluster.gpu,
            "nodes": recipe.cluster.nodes,
            "gpus_per_node": recipe.cluster.gpus_per_node,
            "tokens_per_s_per_gpu": f"{run.tokens_per_s_per_gpu:.5g}",
            "model_tflops_per_gpu": f"{run.model_tflops_per_gpu:g}",
            "trusted": "yes" if run.trusted else "no",
            "settings": json.dumps({knob: there for knob, (_, there) in bare.diff(recipe).items()}),
            "source": sources[run.row],
        }


def _source(row: dict[str, str]) -> str:
    place = f"{row['source_file']}:{row['source_line']}" if row["source_line"] else row["source_file"]
    return f"{row['source_type']} {place}" + (f" at {row['commit'][:10]}" if row["commit"] else "")


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    print(f"{TABLE.relative_to(ROOT)}: {len(table().splitlines()) - 1} runs")
