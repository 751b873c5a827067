"""`moe-autotune report`: the report of a study, written again from its journal."""

from __future__ import annotations

from pathlib import Path

from autotune.commands.answer import Answer, StudyFolder


def report(study: StudyFolder) -> Answer:
    """Write a study's report again from its journal."""
    import msgspec

    from autotune.report import write_report

    page = write_report(Path(study))
    print(page)
    return Answer(document=msgspec.Raw((Path(study) / "report.json").read_bytes().strip()))
