"""Defines the JSON documents of commands that have no folder of their own."""

from __future__ import annotations

from typing import Literal, TypedDict

Shell = Literal["bash", "zsh", "fish"]
# name of a document: a command's, or a file's
Name = Literal[
    "report", "journal", "outcome", "dry-run", "status", "studies", "check", "estimate", "plan", "probe", "diagnose",
    "compare", "gap", "bisect", "bisect-plan", "twin",
    "export", "import",
    "record", "init", "doctor", "completion", "schema", "error",
]  # fmt: skip


class CompletionDocument(TypedDict):
    """Document of `completion --json`."""

    schema: int
    shell: Shell
    script: str
    file: str | None  # the file that --install wrote


class SchemaList(TypedDict):
    """Document of `schema --json` without a name; with one, the document is its JSON Schema."""

    schema: int
    documents: dict[str, str]  # name → description
