"""Checks the output of a run: a line for each event, and on a terminal a panel with its state."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

from rich.console import Console

from autotune.looks.reasons import sentence
from autotune.tuning.events import BurstStarted, Event, TunerStarted
from autotune.tuning.history import History
from autotune.tuning.journal import events_of, read_study
from autotune.tuning.live import LiveView, PlainView, summary, view_for
from tests.autotune.tuning.fakes import FASTER, NO_IDEAS, OOM, PLANTED, SLOWER, Idea, loop_in, micro_batches

TIMED = re.compile(r"^\d\d:\d\d:\d\d ")
IDEAS = [SLOWER, FASTER, Idea(changes={"micro_batch_size": 3})]


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=110, color_system=None)


def said(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def untimed(text: str) -> str:
    """Returns a log without its times; fails on a line that has none."""
    lines = text.splitlines()
    assert all(TIMED.match(line) for line in lines), text
    return "".join(f"{TIMED.sub('', line)}\n" for line in lines)


def test_a_log_has_one_line_per_event_of_the_study(tmp_path: Path) -> None:
    out = console()
    loop_in(tmp_path, rule=micro_batches, ideas=IDEAS, listener=PlainView(console=out).show).run()
    lines = untimed(said(out)).splitlines()
    for line in (
        "study fake started, seed 1234",
        "[fit] trial 0: base",
        "  why: the base recipe",
        "  wall: host: planted",
        "  accepted: the first recipe that runs",
        "[profile] trial 2: planted",
        "  changes: micro_batch_size 1 → 4",
        f"  why: {sentence(PLANTED)}",
        f"converged: {sentence(NO_IDEAS)}",
    ):
        assert line in lines
    assert any(line.startswith("  burst 1: 100 ms per step, ") for line in lines)
    assert any(line.startswith("  rejected: no gain: −") for line in lines)
    assert any(line.startswith("  not run: config: ") for line in lines)


def test_a_resumed_study_shows_its_history_before_anything_runs(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, ideas=[FASTER], budget=3).run()
    out = console(terminal=True)
    view = LiveView(console=out, folder=tmp_path, clock=lambda: 75.0)
    view.print_earlier(events_of(tmp_path))
    out.print(view.panel())
    log, panel = said(out)[: said(out).rindex("╭")], said(out)[said(out).rindex("╭") :]
    assert "burst 1: 100 ms per step" in log
    assert "trial 1 (planted), 4." in panel
    assert "nothing runs yet" not in panel


def test_the_journal_passes_its_listener_the_whole_study_while_the_loop_replays_it(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, ideas=[FASTER], budget=3).run()
    known: list[int] = []
    loop = loop_in(
        tmp_path, rule=micro_batches, ideas=[FASTER], listener=lambda _, history: known.append(len(history.finished))
    )
    loop.bench.journal.append(TunerStarted(recipe="fake.yaml", budget=20))
    assert known == [3]


def test_a_new_day_is_said_in_the_log() -> None:
    out = console()
    view = PlainView(console=out)
    for at in (0.0, 60.0, 86_400.0):
        view.say("a line", at=at)
    lines = said(out).splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"\d\d:\d\d:\d\d \d{4}-\d\d-\d\d", lines[2])


def test_a_terminal_breaks_lines_between_words(tmp_path: Path) -> None:
    out = console(terminal=True)
    sentence = "evidence of some length that does not fit " * 6
    PlainView(console=out).say(f"  why: {sentence}", at=0.0)
    lines = [line.rstrip() for line in said(out).splitlines()]
    assert len(lines) > 1
    assert all(len(line) <= 110 for line in lines)
    assert " ".join(" ".join(lines).split()).endswith(sentence.strip())


def test_the_evidence_of_a_failure_is_said_once(tmp_path: Path) -> None:
    out = console()
    loop_in(tmp_path, rule=lambda recipe: OOM, listener=PlainView(console=out).show).run()
    assert "  burst 1: oom on rank 1: std::bad_alloc\n  rejected: out of memory\n" in untimed(said(out))
    assert said(out).count("std::bad_alloc") == 1


def test_markup_in_evidence_is_text(tmp_path: Path) -> None:
    out = console()
    loop_in(
        tmp_path,
        rule=micro_batches,
        ideas=[Idea(changes={"micro_batch_size": 4}, fix="[bold]not bold[/bold]")],
        listener=PlainView(console=out).show,
    ).run()
    assert "[bold]not bold[/bold]" in said(out)


def test_the_panel_says_phase_burst_best_wall_and_what_is_tried(tmp_path: Path) -> None:
    out = console(terminal=True)
    view = LiveView(console=out, folder=tmp_path, clock=lambda: 75.0)
    loop = loop_in(tmp_path, rule=micro_batches, ideas=[FASTER, SLOWER], listener=view.show)
    loop.bench.journal.append(TunerStarted(recipe="fake.yaml", budget=20))
    panels = []

    def judged(event: Event, history: History) -> None:
        view.show(event, history)
        if isinstance(event, BurstStarted) and event.trial == 2:
            out.print(view.panel())
            panels.append(said(out)[said(out).rindex("╭") :])

    loop.bench.journal._listener = judged
    loop.run()
    for text in ("profile", "3 of 20", "trial 1 (planted), 4.", "host", "manual_gc false → true", "+20.0 % throughput"):
        assert text in panels[0]


def test_figures_of_a_model_are_never_called_measured(ended: Path) -> None:
    said, study = (ended / "said.txt").read_text(), ended / "studies/sim-1"
    assert "nothing was measured" in said
    assert "simulated GPU-hours" in said
    assert json.loads((study / "report.json").read_text())["simulated"] is True
    for name in ("report.md", "report.html"):
        text = (study / name).read_text()
        assert "simulated: no figure was measured" in text
        assert "simulated GPU-hours" in text


def test_a_terminal_gets_the_panel_and_a_pipe_gets_lines() -> None:
    assert isinstance(view_for(console(terminal=True), folder=Path("s")), LiveView)
    assert isinstance(view_for(console(), folder=Path("s")), PlainView)


def test_the_end_shows_every_trial_its_wall_and_the_speed_up(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, ideas=[SLOWER, FASTER]).run()
    out = console()
    summary(read_study(tmp_path), out)
    table = said(out).splitlines()
    assert [line.split()[:2] for line in table[1:4]] == [["0", "base"], ["1", "planted"], ["2", "planted"]]
    assert [line.split()[-2:] for line in table[1:4]] == [
        ["host", "accepted"],
        ["host", "rejected"],
        ["host", "accepted"],
    ]
    assert table[-1].startswith("best: trial 2 (planted), 4.0")
    assert "95 % interval" in table[-1]


def test_the_end_of_a_study_in_which_nothing_ran_says_so(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=lambda recipe: OOM).run()
    out = console()
    summary(read_study(tmp_path), out)
    assert "best: nothing runs yet" in said(out)
