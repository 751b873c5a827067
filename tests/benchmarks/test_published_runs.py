"""Published runs as they are read: tokens that a table took from an older release follow its TFLOPS."""

import csv

import pytest

from benchmarks.places import DATA
from benchmarks.published_runs import read_runs


@pytest.mark.parametrize(
    ("row", "printed_again"),
    [
        ("P0059", "P0101"),
        ("P0060", "P0102"),
        ("P0061", "P0103"),
        ("P0063", "P0105"),
        ("P0074", "P0113"),
        ("P0097", "P0131"),
    ],
)
def test_tokens_of_an_older_release_are_those_that_the_release_prints_when_it_prints_the_row_again(
    row: str, printed_again: str
) -> None:
    with (DATA / "published_runs.csv").open(encoding="utf-8") as file:
        tokens = {each["row_id"]: float(each["tokens_per_sec_per_gpu"] or 0) for each in csv.DictReader(file)}
    (run,) = (each for each in read_runs()[0] if each.row == row)
    assert tokens[row] != pytest.approx(tokens[printed_again], rel=0.02)
    assert run.tokens_per_s_per_gpu == pytest.approx(tokens[printed_again], rel=0.01)


def test_a_release_that_counts_a_model_otherwise_keeps_its_tokens() -> None:
    (run,) = (each for each in read_runs()[0] if each.row == "P0286")  # gpt-oss without windows counted
    assert run.tokens_per_s_per_gpu == pytest.approx(13722, rel=0.01)
