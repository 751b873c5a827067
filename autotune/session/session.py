"""Runs the tuner on an open study: the loop, its end for any reason, the report and the notification."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from analyzers import analyze
from autotune.check.legal import RANKS_HERE
from autotune.errors import explain
from autotune.exit_codes import DONE, OF_ENDS, TOOL_FAILED
from autotune.probe.study import probe_before
from autotune.report import write_report, write_running
from autotune.session.interruption import Interruption, ended_by_error
from autotune.session.notify import notify, summary_of, variables
from autotune.session.running_page import RunningPage
from autotune.tuning.bench import Bench
from autotune.tuning.events import Ended, Event, TunerStarted
from autotune.tuning.history import History
from autotune.tuning.journal import Listener
from autotune.tuning.live import View, summary
from autotune.tuning.loop import Loop
from autotune.tuning.study import Study
from autotune.tuning.study_status import RESUMABLE, resume_command, study_status
from policies.tuner.tuner import Tuner
from trainer.engines import Engine, open_engine
from trainer.errors import AllocationEndedError, ToolError
from trainer.launchers.open import nodes_of
from trainer.legality import findings_of
from trainer.secrets import masked


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a run: bursts (`ablate` of them are kept for the ablation), GPU-hours, and the deadline `until`
    (seconds since the epoch)."""

    budget: int
    max_gpu_hours: float | None
    until: float | None
    ablate: int = 0
    gpu_hour_price: float | None = None  # price shown in the report
    probe: bool = True  # measure the cluster before the first burst


class Runs(Protocol):
    """A loop that runs a study until it ends, writes how it ended, and returns that event."""

    def run(self) -> Ended: ...


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a session: its loop, the report on its study, and the final summary.

    `write_running` writes the page of a running study, None if there is none.
    """

    loop: Callable[[Study, Engine, Limits], Runs]
    write_report: Callable[[Path], Path]
    summary: Callable[[History, Console], None]
    write_running: Callable[..., None] | None


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of the tuner.

    `given`: the recipe as named on the command line; `notify`: the command to run at the end; `work`: None to tune.
    """

    given: str
    folder: Path
    limits: Limits
    view: View
    console: Console
    notify: str | None
    work: Work | None = None

    @property
    def _work(self) -> Work:
        return self.work or Work(loop=loop_of, write_report=write_report, summary=summary, write_running=write_running)

    def run(self, open_study: Callable[[Listener], Study], past: Iterable[Event]) -> Ended:
        """Runs the study; ends with report, summary and notification, after an error without the summary. `past` are
        the events of earlier runs."""
        write = self._work.write_running
        page = None if write is None else RunningPage(folder=self.folder, say=self._say, write=write)

        def listen(event: Event, history: History) -> None:
            self.view.show(event, history)
            if page is not None:
                page.show(event, history)

        study = open_study(listen)
        with closing(study):
            self._begin(study, past)
            try:
                with Interruption(self.limits.until) as interruption:
                    ended = self._loop(study, interruption)
                    interruption.settle()
                    written = self._work.write_report(study.folder)
            except Exception as error:
                self._failed(study, error)
                raise
        self._sum_up(study.journal.whole)
        self._say(f"report: {written}")
        if ended.status in RESUMABLE:
            self._say(f"resume with: {resume_command(study.journal.whole, str(self.folder))}")
        self._notify(study.journal.whole, OF_ENDS.get(ended.status, DONE))
        return ended

    def _begin(self, study: Study, past: Iterable[Event]) -> None:
        self._say(f"study {study.folder}")
        if study.journal.torn_bytes:
            self._say(f"the journal's last line was incomplete ({study.journal.torn_bytes} bytes) and was removed")
        self.view.print_earlier(past)
        limits = self.limits
        study.journal.append(
            TunerStarted(
                recipe=self.given,
                budget=limits.budget,
                max_gpu_hours=limits.max_gpu_hours,
                until=limits.until,
                ablate=limits.ablate,
                host=platform.node(),
                process=os.getpid(),
                job=os.environ.get("SLURM_JOB_ID"),
                gpu_hour_price=limits.gpu_hour_price,
                nodes=_nodes(study),
            )
        )

    def _loop(self, study: Study, interruption: Interruption) -> Ended:
        try:
            with closing(_engine(study)) as engine:
                try:
                    with self.view.live():
                        self._probe(study)
                        return self._work.loop(study, engine, self.limits).run()
                except (KeyboardInterrupt, AllocationEndedError):
                    interruption.settle()  # a second Ctrl-C must not interrupt the engine's closing
                    raise
        except KeyboardInterrupt as ending:
            return study.journal.append(interruption.ended_event(str(ending)))
        except AllocationEndedError as ending:
            return study.journal.append(interruption.ended_event(ending.what))
        except Exception:
            if not interruption.received:
                raise
            return study.journal.append(interruption.ended_event())  # NumPy turns KeyboardInterrupt into a TypeError

    def _probe(self, study: Study) -> None:
        """Probes the cluster before the first burst; only its links if the session does not tune."""
        limits, rows = self.limits, self.work is None and self.limits.probe
        probe_before(study, budget=limits.budget, max_gpu_hours=limits.max_gpu_hours, rows=rows)

    def _failed(self, study: Study, error: Exception) -> None:
        """Writes the journal's last event and the report, if the disk has room, and notifies."""
        known = explain(error)
        what = known.problems[0].what if known else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            if study.journal.whole.ended is None:
                study.journal.append(ended_by_error(masked(what)))
                self._work.write_report(study.folder)
        self._notify(study.journal.whole, known.code if known else TOOL_FAILED)

    def _sum_up(self, history: History) -> None:
        """Prints the summary: plain on a terminal, in a log with the time on every line."""
        if self.console.is_terminal:
            self._work.summary(history, self.console)
        else:
            with self.console.capture() as captured:
                self._work.summary(history, self.console)
            for line in captured.get().splitlines():
                self._say(line.rstrip())

    def _notify(self, history: History, code: int) -> None:
        if self.notify is None:
            return
        status = study_status(history, folder=str(self.folder), now=time.time(), held=False)
        environment = variables(status, code=code, report=str(self.folder / "report.html"))
        self._say(f"notify: {summary_of(status)}")
        if trouble := notify(self.notify, environment):
            self._say(trouble)

    def _say(self, text: str) -> None:
        self.view.say(text, at=time.time())


def bench_of(study: Study, engine: Engine, limits: Limits) -> Bench:
    """Returns the bench that runs bursts of the study on the engine, within the limits."""
    return Bench(
        journal=study.journal,
        engine=engine,
        bursts=study.bursts,
        budget=limits.budget,
        max_gpu_hours=limits.max_gpu_hours,
        until=limits.until,
        reserved=limits.ablate,
        seed=study.seed,
        check=findings_of,
        analyze=analyze,
        clock=time.time,
        nodes=_nodes(study),
    )


def _nodes(study: Study) -> int | None:
    """Returns the number of nodes that the launcher has; None without a limit, as in a simulation."""
    return nodes_of(study.recipe) if study.recipe.burst.engine in RANKS_HERE else None


def loop_of(study: Study, engine: Engine, limits: Limits) -> Loop:
    """Returns the loop that tunes."""
    recipe, known, bench = study.recipe, study.journal.whole, bench_of(study, engine, limits)
    policy = Tuner(recipe, study.seed, known.lessons, probed=known.rows, nodes=bench.nodes)
    sizing = None if recipe.tune.proxy_nodes is None else policy
    return Loop(base=recipe, policy=policy, bench=bench, patience=recipe.tune.patience, sizing=sizing)


def _engine(study: Study) -> Engine:
    name = study.recipe.burst.engine
    try:
        return open_engine(name, study.folder / "engine")
    except ImportError as error:
        raise ToolError(
            f"engine {name!r} cannot be loaded: {error}", hint="`moe-autotune doctor` says what is missing"
        ) from error
