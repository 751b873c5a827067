"""`moe-autotune schema`: prints the JSON Schema of a document that this program writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force
from autotune.schemas.plain import Name


def schema(
    name: Annotated[Name | None, Parameter(help="A command or a file; default: list all names.")] = None,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), help="Output file; default stdout.")] = None,
    force: Force = False,
) -> Answer:
    """Print the JSON Schema of a document: of a command's --json, of report.json, of a journal's line."""
    import json

    from autotune.output import text_at
    from autotune.schemas.documents import DOCUMENTS
    from autotune.schemas.plain import SchemaList
    from autotune.schemas.schema import schema_of

    if name is None:
        said: dict[str, str] = {each: document.summary for each, document in DOCUMENTS.items()}
        print("\n".join(f"{each:12}{words}" for each, words in said.items()))
        return Answer(document=SchemaList(schema=1, documents=said))
    file = text_at(output, inputs=(), force=force)
    found = schema_of(name)
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if file is None:
        print(text, end="")
    else:
        file.write(text)
        print(file.path)
    return Answer(document=found)
