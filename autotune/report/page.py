"""Renders report.html: one self-contained page from a template, a style sheet and the figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from autotune.looks.acting import acting_changes
from autotune.looks.fix_names import parts_of, shares_text, titles_text
from autotune.looks.fix_pages import plain_paragraphs
from autotune.looks.quantities import changes_text, duration, percent
from autotune.looks.reasons import proposal_text, verdict_text
from autotune.looks.recipes import fidelity_words
from autotune.looks.render import render
from autotune.looks.segments import compute_classes, counted_steps, slowest
from autotune.report.bars import rank_bars
from autotune.report.figures import FIGURES
from autotune.report.head import head_of
from autotune.report.material import Material, Record, Section, status_words
from autotune.report.path import predicted_text
from autotune.report.sections import sections_of
from autotune.report.story import story_of
from autotune.report.walls import burst_folders, wall_of
from autotune.tuning.study_status import RATE, StudyStatus, clock_words, rows_of
from policies.fixes import FIXES
from policies.trial import Trial

LATE_BURSTS = 4.0  # mean burst durations after which a page is shown as late
FIRST_BURST_S = 1800.0  # seconds after which a page is shown as late before the first burst has ended


@dataclass(frozen=True, kw_only=True)
class TrialCard:
    """All details of one trial, collapsed until opened."""

    number: int
    record: Record
    walls: tuple[tuple[str, tuple[str, ...]], ...]
    bars: Markup
    about: tuple[tuple[str, tuple[str, ...]], ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Running:
    """The top of a running study's page, and when it reloads. From `late_at` (seconds since the epoch) on, a page that
    was not written again shows `late`."""

    rows: list[tuple[str, str]]
    note: str
    late: str
    late_at: float
    reload_s: int = 10


def page(material: Material, tuned_yaml: str | None, running: Running | None = None) -> str:
    """Renders the page; `tuned_yaml` is the tuned recipe to show, None if nothing runs."""
    return render(
        "page.html.j2",
        story=story_of(material.history, material.document),
        head=head_of(material),
        sections=[(section, _figure(section, material)) for section in sections_of(material, running=bool(running))],
        cards=[_card(trial) for trial in material.trials],
        tuned_yaml=tuned_yaml,
        running=running,
    )


def running_of(status: StudyStatus, now: float) -> Running:
    """Returns the top of a running study's page, written at `now`."""
    usual_s = status.running.usual_s if status.running else None
    written = clock_words(now, now)
    return Running(
        rows=[row for row in rows_of(status, now) if row[0] != RATE],  # the page has the throughput from all steps
        note=f"Written at {written}, and again after every burst; this page reads itself again while the study runs.",
        late=f"No news since {written}. `moe-autotune status {status.folder}` says whether the tuner still runs.",
        late_at=now + (LATE_BURSTS * usual_s if usual_s else FIRST_BURST_S),
    )


def _figure(section: Section, material: Material) -> Markup | None:
    draw = FIGURES.get(section.key)
    return draw(material) if draw else None


def _card(trial: Trial) -> TrialCard:
    wall = wall_of(trial)
    facts = (
        ("reason", proposal_text(trial.proposal)),
        ("size", fidelity_words(trial.fidelity) if trial.fidelity is not None else ""),
        ("fixes", shares_text(trial.proposal)),
        ("change", changes_text(acting_changes(trial.recipe, trial.changes))),
        ("predicted", predicted_text(trial)),
        ("verdict", f"{status_words(trial)}: {verdict_text(trial)}"),
        ("wall", f"{wall}: {trial.analysis.diagnosis.because if trial.analysis else wall.evidence[0]}"),
        ("computing", _computing(trial)),
        ("seen in", wall.seen_in),
        ("data", burst_folders(trial)),
    )
    heading = f"Trial {trial.number} · {trial.proposal.phase.value} · {titles_text(trial)} · {status_words(trial)}"
    return TrialCard(
        number=trial.number,
        record=Record(heading=heading, facts=facts),
        walls=_walls(trial),
        bars=rank_bars(trial),
        about=tuple(_about(trial)),
        warnings=tuple(dict.fromkeys(warning for outcome in trial.outcomes for warning in outcome.warnings)),
    )


def _computing(trial: Trial) -> str:
    """Returns the compute classes of the slowest rank's average step, with their times."""
    trace = slowest(trial.analysis) if trial.analysis else None
    classes = compute_classes(counted_steps(trace)) if trace else []
    return ", ".join(f"{name} {duration(us)}" for name, us in classes if us > 0)


def _walls(trial: Trial) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns (title, evidence) of every wall in the diagnosis, ranked."""
    findings = trial.analysis.diagnosis.walls if trial.analysis else []
    return tuple(
        (
            f"{finding.wall.value}: up to {duration(finding.recoverable_us)}, {percent(finding.share)} of the step",
            tuple(finding.evidence),
        )
        for finding in findings
    )


def _about(trial: Trial) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the title and the paragraphs of the page of each of a trial's fixes."""
    for part in parts_of(trial.proposal, trial.changes):
        if part.fix in FIXES:
            yield FIXES[part.fix].title, plain_paragraphs(FIXES[part.fix].page)
