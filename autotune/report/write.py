"""Writes the files derived from a study's journal; the same journal and bursts give the same bytes,
except for the page of a running study."""

from __future__ import annotations

from pathlib import Path

import msgspec

from autotune.looks.reasons import provisional_text
from autotune.output import replace_file
from autotune.report.agreement import disagreements
from autotune.report.document import document_of
from autotune.report.markdown import markdown
from autotune.report.material import material_of
from autotune.report.page import page, running_of
from autotune.tuning.history import History
from autotune.tuning.journal import read_study
from autotune.tuning.provisional import with_provisional_verdicts
from autotune.tuning.study import BURSTS
from autotune.tuning.study_status import study_status

HTML, MARKDOWN, JSON, RECIPE = "report.html", "report.md", "report.json", "tuned_recipe.yaml"


def write_report(study_dir: Path, *, gpu_hour_price: float | None = None) -> Path:
    """Writes report.html, report.md, report.json and, if a recipe runs, tuned_recipe.yaml; returns the page's path.

    The price of a GPU-hour is the journal's if none is given. Raises BadInputError if the folder has no readable
    journal, OSError if it cannot be written to.
    """
    rendered = render(read_study(study_dir), gpu_hour_price=gpu_hour_price, bursts=study_dir / BURSTS)
    for name, text in rendered.items():
        replace_file(study_dir / name, text)
    if RECIPE not in rendered:
        (study_dir / RECIPE).unlink(missing_ok=True)
    return study_dir / HTML


def write_running(history: History, *, study_dir: Path, now: float) -> None:
    """Writes report.html as the page of a running study; a reader never sees a part of it. Raises OSError."""
    history = with_provisional_verdicts(history)
    status = study_status(history, folder=str(study_dir), now=now, held=True)
    material = material_of(history, document_of(history), bursts=study_dir / BURSTS)
    tuned = _tuned(history)
    replace_file(study_dir / HTML, page(material, tuned, running_of(status, now)))


def render(history: History, *, gpu_hour_price: float | None = None, bursts: Path | None = None) -> dict[str, str]:
    """Returns file name → text of every derived file, from the history and the files in the folder of its bursts."""
    history = with_provisional_verdicts(history)
    document = document_of(history, gpu_hour_price=gpu_hour_price, warnings=disagreements(history, bursts))
    material = material_of(history, document, bursts=bursts)
    tuned = _tuned(history)
    encoded = msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=1)
    rendered = {
        JSON: encoded.decode() + "\n",
        MARKDOWN: markdown(material),
        HTML: page(material, tuned),
    }
    return rendered | ({RECIPE: tuned} if tuned is not None else {})


def _tuned(history: History) -> str | None:
    """Returns the tuned recipe as YAML, with a comment if its verdict is provisional; None if nothing runs."""
    best = history.best
    if best is None:
        return None
    return (f"# {provisional_text(best)}\n" if best.provisional else "") + best.recipe.to_yaml()
