"""The report of a study, for people and programs: report.html, report.md, report.json, tuned_recipe.yaml."""

from autotune.report.document import Document, document_of
from autotune.report.write import render, write_report, write_running

__all__ = ["Document", "document_of", "render", "write_report", "write_running"]
