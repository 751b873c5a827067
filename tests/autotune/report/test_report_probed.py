"""Checks the probe of a study in its report: every row with its expected value, in the document and in words."""

from __future__ import annotations

from pathlib import Path

from autotune.report.document import document_of
from autotune.report.markdown import markdown
from autotune.report.material import material_of
from autotune.tuning.events import Event, Probed
from autotune.tuning.history import History
from autotune.tuning.lessons import learned_study
from policies.surrogate.probed import expected_rows
from policies.surrogate.surrogate import fit_surrogate
from tests.autotune.report.drawn_study import base_recipe, events, write_study
from trainer.microbenchmarks.groups import rows_of
from trainer.microbenchmarks.row import Row, failed, measured


def rows() -> list[Row]:
    """Returns rows: GEMMs take two and three times as long as expected on the two ranks, the profiler works, and the
    rest was not measured."""
    planned = [row for row in rows_of(base_recipe()) if row.kind in ("gemm", "layer_kept", "profiler")]
    found = []
    for row, expected in zip(planned, expected_rows(planned, base_recipe()), strict=True):
        if row.kind == "gemm":
            assert expected.expected is not None
            found.append(measured(row, {0: [2 * expected.expected], 1: [3 * expected.expected]}))
        else:
            found.append(measured(row, {0: [1.0]}) if row.unit == "works" else failed(row, "no time was left"))
    return found


def probed_study() -> list[Event]:
    started, *rest = events()
    return [started, Probed(at=started.at, links=None, rows=tuple(rows()), ranks=2, seconds=36.0), *rest]


def test_the_rows_of_a_probe_are_in_the_document_and_in_the_report() -> None:
    history = History(probed_study())
    document = document_of(history)
    assert document.probe is not None
    assert (document.probe.ranks, document.probe.gpu_hours) == (2, 0.02)
    assert [row.name for row in document.probe.rows] == [row.name for row in rows()]
    said = markdown(material_of(history, document))
    assert "## Probe of the cluster" in said
    assert "on 2 ranks before the first burst, in 36 s (0.020 rank-hours)" in said
    assert "| 2.00 times slower |" in said
    assert "no time was left." in said


def test_a_study_without_rows_has_no_such_section() -> None:
    document = document_of(History(events()))
    assert document.probe is None
    assert "Probe of the cluster" not in markdown(material_of(History(events()), document))


def test_what_a_study_teaches_others_begins_with_its_own_probe(tmp_path: Path) -> None:
    taught = learned_study(write_study(tmp_path / "study", probed_study()))
    blind = fit_surrogate(taught.history.trials, limit_gib=None)
    with_rows, without = (found.theta["cpu_products"] for found in (taught.surrogate.time, blind.time))
    assert abs(with_rows - without) > 0.05
