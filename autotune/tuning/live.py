"""Shows a tuning run: a live panel on a terminal, plain lines anywhere else.

Both listen to the journal, so only recorded events are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from autotune.looks.fix_names import short_names
from autotune.looks.quantities import UNMEASURED, counted, significant
from autotune.looks.shares import COLUMNS, NUMBERS, share_rows
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import wrapped
from autotune.tuning.events import Event
from autotune.tuning.history import History
from autotune.tuning.lines import best_in_words, cost_in_words, line_of, wall_text
from autotune.tuning.provisional import with_provisional_verdicts
from autotune.tuning.study_status import StudyStatus, rows_of, study_status
from policies.noise import throughput
from policies.trial import Trial, Verdict

NAMES_WIDTH = 17  # columns of the panel for its border and the row names
CLOCK = len("08:02:11 ")
STYLES = {Verdict.ACCEPTED: "green", Verdict.REJECTED: "red", Verdict.INCONCLUSIVE: "yellow"}


@dataclass(kw_only=True)
class PlainView:
    """Prints one or two lines per event with the time; on a terminal they wrap between words."""

    console: Console
    _day: date | None = field(init=False, default=None)

    def show(self, event: Event, history: History) -> None:
        if line := line_of(event, history):
            self.say(line, at=event.at)

    def print_earlier(self, events: Iterable[Event]) -> None:
        """Prints the lines of an earlier run of the tuner, with their original times."""
        history = History()
        for event in events:
            history.fold(event)
            self.show(event, history)

    def say(self, text: str, *, at: float) -> None:
        """Prints lines of the log; if the date has changed since the last line, prints the date first."""
        moment = datetime.fromtimestamp(at)
        clock = moment.strftime("%H:%M:%S ")
        if self._day not in (None, moment.date()):
            self._print(f"{clock}{moment.date()}")
        self._day = moment.date()
        for line in text.splitlines():
            self._print(clock + line)

    def live(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _print(self, line: str) -> None:
        for part in self._broken(line):
            self.console.print(part, markup=False, highlight=False, soft_wrap=True)

    def _broken(self, line: str) -> list[str]:
        if not self.console.is_terminal:
            return [line]
        lead = line[: len(line) - len(line[CLOCK:].lstrip())]
        first, *rest = wrapped(line[len(lead) :], self.console.width - len(lead) - 2)
        return [lead + first, *(" " * (len(lead) + 2) + part for part in rest)]


@dataclass(kw_only=True)
class LiveView(PlainView):
    """Prints the same lines above a panel with the state of the run."""

    folder: Path
    clock: Callable[[], float] = time.time
    _status: StudyStatus | None = field(init=False, default=None)

    def show(self, event: Event, history: History) -> None:
        self._status = study_status(history, folder=str(self.folder), now=self.clock(), held=True)
        super().show(event, history)

    def live(self) -> AbstractContextManager[object]:
        return Live(get_renderable=self.panel, console=self.console, refresh_per_second=4, transient=True)

    def panel(self) -> Panel:
        """Renders phase, burst, the recipe on trial and its reason, the best so far and its wall, the cost, the end."""
        return panel_of(self._status, self.clock(), width=self.console.width)


View = PlainView | LiveView


def view_for(console: Console, *, folder: Path) -> View:
    """Returns a live view for a terminal, plain lines for a file or a pipe."""
    return LiveView(console=console, folder=folder) if console.is_terminal else PlainView(console=console)


def panel_of(status: StudyStatus | None, now: float, *, width: int) -> Panel:
    """Renders a status as a box of `width` columns, with a progress bar of the bursts."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for name, text in rows_of(status, now) if status else [("state", "starting")]:
        rows.add_row(name, escape("\n".join(wrapped(text, width - NAMES_WIDTH))))
    done, of = (status.bursts, status.budget) if status else (0, None)
    bar = [ProgressBar(total=of, completed=done)] if of else []
    return Panel(Group(rows, *bar), title="moe-autotune", border_style="cyan")


def _size(trial: Trial) -> str:
    """Returns `4 nodes, 12 layers` for a proxy, `full` for the recipe itself."""
    size = trial.fidelity
    return "full" if size is None else f"{counted(size.nodes, 'node')}, {counted(size.layers, 'layer')}"


def summary(history: History, console: Console) -> None:
    """Prints the end of a run: every trial with its wall and verdict, and the speed-up."""
    history = with_provisional_verdicts(history)
    figures = (f"tokens/s/{history.unit}", "GiB")
    rates, peaks = (Column(name, justify="right", no_wrap=True) for name in figures)
    sized = any(trial.fidelity is not None for trial in history.trials)
    sizes = [Column("size", no_wrap=True)] if sized else []
    ends = (Column("wall", no_wrap=True), Column("verdict", no_wrap=True))
    table = Table("#", "fixes", *sizes, rates, peaks, *ends, box=None)
    for trial in history.trials:
        rate, peaks_gib = throughput(trial), trial.outcomes[0].peak_gib
        table.add_row(
            str(trial.number),
            short_names(trial),
            *([_size(trial)] if sized else []),
            significant(rate, 4) if rate else str(trial.status),
            significant(max(peaks_gib)) if any(peaks_gib) else "",
            wall_text(trial),
            f"{trial.verdict} (provisional)" if trial.provisional else str(trial.verdict),
            style=STYLES[trial.verdict] if trial.verdict else "",
        )
    console.print(table)
    changes = history.ended.changes if history.ended else ()
    if any(change.obtained_share is not None for change in changes):  # else the report alone has the predicted shares
        header = tuple(name if at in NUMBERS else f"<{name}" for at, name in enumerate(COLUMNS))
        print_table(console, "changes of the tuned recipe", header, share_rows(changes))
    console.print(f"cost: {cost_in_words(history)}", highlight=False, soft_wrap=True)
    console.print(f"best: {best_in_words(history)}", highlight=False, soft_wrap=True)
    if history.simulated:
        console.print(f"simulated: {UNMEASURED}")
