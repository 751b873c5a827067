"""What a tuning run shows while it works: a live panel on a terminal, plain lines anywhere else.

Both listen to the journal: nothing is shown that is not written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from autotune.looks.quantities import changes_text, interval, significant
from autotune.tuning.events import BurstStarted, Event, Proposed
from autotune.tuning.history import History
from autotune.tuning.judge import Speedup, speedup
from autotune.tuning.lines import best_in_words, cost_in_words, line_of, wall_of
from policies.noise import throughput
from policies.trial import Verdict

STYLES = {Verdict.ACCEPTED: "green", Verdict.REJECTED: "red", Verdict.INCONCLUSIVE: "yellow"}


@dataclass(kw_only=True)
class PlainView:
    """One line an event."""

    console: Console

    def show(self, event: Event, history: History) -> None:
        if line := line_of(event, history):
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def live(self) -> AbstractContextManager[object]:
        return nullcontext()


@dataclass(kw_only=True)
class LiveView:
    """The same lines scrolling by, above a panel that says where the run stands."""

    console: Console
    budget: int
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _history: History = field(init=False, default_factory=History)
    _trying: Proposed | None = field(init=False, default=None)
    _burst: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def show(self, event: Event, history: History) -> None:
        self._history = history
        if isinstance(event, Proposed):
            self._trying = event
        if isinstance(event, BurstStarted):
            self._burst = event.burst
        PlainView(console=self.console).show(event, history)

    def live(self) -> AbstractContextManager[object]:
        return Live(get_renderable=self.panel, console=self.console, refresh_per_second=4, transient=True)

    def panel(self) -> Panel:
        """Phase, burst of the budget, best so far, its wall, what is being tried and why, time gone."""
        trying = self._trying
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        for name, text in (
            ("phase", str(trying.phase) if trying else "starting"),
            ("burst", f"{self._burst} of {self.budget}"),
            ("best", best_in_words(self._history)),
            ("its wall", str(wall_of(self._history.best) or "not known yet")),
            ("trying", _tried(trying) if trying else ""),
            ("because", trying.because if trying else ""),
            ("elapsed", _minutes(self.clock() - self._started)),
        ):
            rows.add_row(name, escape(text))
        bar = ProgressBar(total=max(self.budget, 1), completed=len(self._history.finished))
        return Panel(Group(rows, bar), title="moe-autotune", border_style="cyan")


View = PlainView | LiveView


def view_for(console: Console, *, budget: int) -> View:
    """Live where someone is looking, lines where the output goes to a file or a pipe."""
    return LiveView(console=console, budget=budget) if console.is_terminal else PlainView(console=console)


def summary(history: History, console: Console) -> None:
    """The end of a run: every trial with its wall and verdict, and the speed-up."""
    rates, peaks = (Column(name, justify="right", no_wrap=True) for name in ("tokens/s/GPU", "GiB"))
    table = Table("#", "fix", rates, peaks, Column("wall", no_wrap=True), Column("verdict", no_wrap=True), box=None)
    for trial in history.trials:
        rate, peaks_gib = throughput(trial), trial.outcomes[0].peak_gib
        table.add_row(
            str(trial.number),
            trial.proposal.fix,
            significant(rate, 4) if rate else str(trial.status),
            significant(max(peaks_gib)) if any(peaks_gib) else "",
            str(wall_of(trial) or ""),
            str(trial.verdict),
            style=STYLES[trial.verdict] if trial.verdict else "",
        )
    console.print(table)
    console.print(f"cost: {cost_in_words(history)}", highlight=False, soft_wrap=True)
    console.print(f"best: {best_in_words(history)}{_interval(history)}", highlight=False, soft_wrap=True)
    if history.simulated:
        console.print("simulated: these figures are a model's, nothing was measured")


def _interval(history: History) -> str:
    if history.best is None or history.reference is None or history.best is history.reference:
        return ""
    gained: Speedup | None = speedup(history.best, over=history.reference)
    return f" ({interval(gained.low, gained.high)})" if gained else ""


def _tried(proposal: Proposed) -> str:
    return f"{proposal.fix}: {changes_text(proposal.changes)}" if proposal.changes else proposal.fix


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
