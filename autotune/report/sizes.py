"""The section on the sizes of a study's bursts: which proxies ran, their cost, and what the surrogate predicts from
them."""

from __future__ import annotations

from autotune.looks.quantities import NONE, counted, gain, percent, significant
from autotune.looks.recipes import fidelity_words
from autotune.looks.tables import Table
from autotune.report.material import Material, Section, status_words
from policies.trial import Trial

WHY = (
    "A proxy runs fewer nodes and layers with the same work on each GPU. Bursts of one size are compared with each "
    "other; a recipe at full size is predicted by the surrogate, which every burst has calibrated."
)


def sizes(material: Material) -> Section | None:
    """Returns the table of all trials with their sizes; None if no burst ran a proxy."""
    if all(trial.fidelity is None for trial in material.trials):
        return None
    unit = material.unit
    text = ", ".join(
        f"{counted(each.bursts, 'burst')} of {'full size' if each.full_size else _words(each.nodes, each.layers)} for "
        f"{significant(each.gpu_hours, 2)} {unit}-hours"
        for each in material.document.sizes
    )
    rows = tuple(_row(trial) for trial in material.trials)
    columns = ("trial", "size", "bursts", "predicted gain at full size", "P(fits) at full size", "verdict")
    table = Table(columns=columns, rows=rows, numbers=(0, 2, 3, 4))
    return Section(key="sizes", title="Sizes of the bursts", paragraphs=(WHY, f"{text}."), table=table)


def _words(nodes: int, layers: int) -> str:
    return f"{counted(nodes, 'node')} and {counted(layers, 'layer')}"


def _row(trial: Trial) -> tuple[str, ...]:
    figures = trial.verdict_reason.figures if trial.verdict_reason is not None and trial.fidelity is not None else {}
    predicted, fits = figures.get("gain"), figures.get("fits_probability")
    return (
        str(trial.number),
        fidelity_words(trial.fidelity),
        str(len(trial.bursts)),
        gain(predicted) if predicted is not None else NONE,
        percent(fits, 0) if fits is not None else NONE,
        status_words(trial),
    )
