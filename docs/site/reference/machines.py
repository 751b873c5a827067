"""Tables of the models and GPUs that come with the program."""

from __future__ import annotations

from collections.abc import Iterator

from docs.site.page import Page, code, table
from trainer.recipe.tables import read_table

TABLES = (
    ("models", "Models", "models.csv", "Presets that `model:` names."),
    ("gpus", "GPUs", "hardware.csv", "What `cluster.gpu` names; each figure has its source."),
)


def pages() -> Iterator[Page]:
    for name, title, file, said in TABLES:
        rows = read_table(file)
        columns = list(rows[0])
        made = table([code(column) for column in columns], [[row[column] for column in columns] for row in rows])
        text = f"# {title}\n\n{said} From `trainer/recipe/{file}`.\n\n{made}\n"
        yield Page(path=f"{name}.html", title=title, markdown=text, group="Reference")
