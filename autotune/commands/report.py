"""`moe-autotune report`: writes the report of a study again from its journal."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from autotune.commands.answer import Answer, Price, StudyFolder


def report(study: StudyFolder, *, gpu_hour_price: Price = None) -> Answer:
    """Write a study's report again from its journal."""
    import msgspec

    from autotune.looks.working import working
    from autotune.report import write_report, write_running
    from autotune.tuning.journal import read_study
    from autotune.tuning.study import held

    folder = Path(study)
    history = read_study(folder)
    if history.study is not None and history.study.other is not None:
        from autotune.bisect.report import JSON, write_bisection

        print(write_bisection(folder))
        return Answer(document=msgspec.Raw((folder / JSON).read_bytes().strip()))
    with working("writing the report"):
        page = write_report(Path(study), gpu_hour_price=gpu_hour_price)
    if held(Path(study)):  # a running tuner writes the page of a running study after every burst: keep that form
        write_running(read_study(Path(study)), study_dir=Path(study), now=time.time())
    written = (Path(study) / "report.json").read_bytes().strip()
    for warning in msgspec.json.decode(written)["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(page)
    return Answer(document=msgspec.Raw(written))
