"""The JSON document and the terminal output of `twin`."""

from __future__ import annotations

from typing import TypedDict

from rich.table import Column, Table

from autotune.looks.wrapping import plain_console, say
from autotune.twin.learning import Twin
from autotune.twin.written import MEASURED_WORDS

SCHEMA = 1


class TwinKey(TypedDict):
    """A parameter of the simulation, its 90 % interval, and the factors of the surrogate that moved it."""

    key: str
    value: float
    low: float
    high: float
    factors: tuple[str, ...]


class TwinFactor(TypedDict):
    """A factor of the estimate's closed forms: mean and standard deviation on its own scale (`factors.csv`)."""

    factor: str
    mean: float
    deviation: float


class TwinDocument(TypedDict):
    """Document of `twin --json`."""

    schema: int
    name: str
    source: str  # the study or probe
    trials: int  # recipes that were measured
    gpu: str
    keys: list[TwinKey]
    factors: list[TwinFactor]
    memory: list[TwinFactor]
    yaml: str  # the machine file, with its comments
    file: str | None  # the file that -o wrote; null: stdout


def twin_document(twin: Twin, *, text: str, file: str | None) -> TwinDocument:
    estimate = twin.file.estimate
    assert estimate is not None
    factors, memory = (
        [TwinFactor(factor=name, mean=each.mean, deviation=each.deviation) for name, each in figures.items()]
        for figures in (estimate.factors, estimate.memory)
    )
    return {
        "schema": SCHEMA,
        "name": twin.file.name,
        "source": estimate.source,
        "trials": estimate.trials,
        "gpu": estimate.gpu,
        "keys": [
            {"key": name, "value": key.value, "low": key.low, "high": key.high, "factors": key.factors}
            for name, key in twin.keys.items()
        ],
        "factors": factors,
        "memory": memory,
        "yaml": text,
        "file": file,
    }


def show_twin(twin: Twin, *, file: str) -> None:
    """Prints the keys that the study moved, each with its interval, what they were learned from, and the file."""
    console = plain_console()
    table = Table("key", Column("value", justify="right"), Column("90 %", justify="right"), "learned from", box=None)
    for name, key in twin.keys.items():
        between = f"{key.low:.3g} to {key.high:.3g}" if key.factors else ""
        table.add_row(name, f"{key.value:.3g}", between, ", ".join(key.factors) or MEASURED_WORDS.get(name, ""))
    console.print(table)
    say(console, f"{twin.file.about}")
    say(console, f"machine file: {file}")
