"""Finds what to try after a diagnosis: fixes of the wall, further recordings, and nodes.

Joins `analyzers` and `policies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import msgspec
from rich.console import Console

from analyzers.diagnosis import Analysis, Diagnosis, Wall, WallFinding
from autotune.looks.fix_pages import without_code_marks
from autotune.looks.flagless import settings_text
from autotune.looks.quantities import counted, duration, gain, percent
from autotune.looks.wrapping import say
from policies.advice.advice import ADVISED, OPEN, Advice, advice
from policies.advice.cures import NOTHING, advice_on, cure_of
from policies.situation import Situation
from trainer.estimate.plan.feasible import MAX_GPUS, fewest_nodes
from trainer.estimate.plan.search import can_fit, outline
from trainer.recipe import Recipe

FIXES_SHOWN = 4  # most fixes shown in a terminal
EXPLAIN = "moe-autotune diagnose --explain"
# `Diagnosis.doubt` (why no wall is named) → what a further recording must contain to name one
RECORD = {
    "cut_short": "the whole trace: let the profiler finish (stop() before the process ends), copy the complete file",
    "low_coverage": "nothing more: name the unknown kernels above in analyzers/names/kernels.csv, one row each",
    "unattributed": "the host too (activities=[CPU, CUDA]; nsys: -t cuda,nvtx,osrt --cuda-graph-trace=node)",
    "no_wall_is_larger": "every rank of the job in the same steps, to see which one the others wait for, and why",
    "nothing_stands_out": "a burst (`moe-autotune run`): it has the measured and attainable FLOP/s that compute needs",
    "too_close": "more steps (10 usually suffice), for a steadier average",
    "may_be_waiting": "every rank of the group that communicates, in the same steps",
    "may_be_the_hosts": "what the device waits for: torch.profiler with enable_cuda_sync_events=True",
    "another_stage": "one rank of every pipeline stage",
    "steps_differ": "more steps, and look at those that name another wall (--from, --to)",
    "no_traces": "a trace: `burst.trace_steps` of the recipe above 0, or torch.profiler around two steps",
}


class NextFix(TypedDict):
    """A fix that acts on the wall: its flags, its gain at most, and its cost."""

    fix: str
    title: str
    wall: Wall
    gives_back_us: float | None  # per step, at most; null if it frees memory instead of time
    gain: float | None  # a fraction of throughput, at most
    flags: list[str]  # Megatron's flags to add
    without: list[str]  # Megatron's flags to remove
    settings: dict[str, Any]  # knob → value of a fix without flags
    changes: dict[str, Any]  # knob → value
    costs: str
    explain: str  # the command that explains the fix


class NextSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The field `next` of `diagnose --json`. wall: the wall that the fixes act on: the verdict's, or if none is named,
    its cause's or the largest; null if no wall has time to recover."""

    wall: Wall | None
    said: str
    record: str = ""  # what to record for a more certain verdict
    fixes: list[NextFix] = []
    nodes_needed: int | None = None  # if the run does not fit on its nodes


def next_steps(analysis: Analysis, situation: Situation | None = None) -> NextSteps:
    """Returns what to try after a diagnosis; situation: the traced recipe and burst, if known."""
    finding = _next_wall(analysis)
    doubt = _record(analysis.diagnosis)
    if finding is None:
        return NextSteps(wall=None, said="No wall has recoverable time that a fix acts on.", record=doubt)
    found = _fixes(analysis, finding, situation)
    nodes = nodes_needed(situation.recipe) if situation is not None and _does_not_fit(finding) else None
    return NextSteps(
        wall=finding.wall,
        said=" ".join(each for each in _sentences(analysis, finding, found, situation, nodes) if each),
        record=doubt,
        fixes=[_document(one) for one in found],
        nodes_needed=nodes,
    )


def _record(diagnosis: Diagnosis) -> str:
    """Returns what to record for a more certain verdict; empty if a wall or the cause of the loss is known and no other
    rank's trace would add evidence."""
    cause = diagnosis.cause
    if cause is not None and cause.trace_ranks:
        return f"ranks {', '.join(map(str, cause.trace_ranks))} in the same steps, in addition to those traced"
    if diagnosis.wall is not Wall.UNDETERMINED:
        return ""
    return "" if cause is not None and cure_of(diagnosis) is not NOTHING else RECORD.get(diagnosis.doubt, "")


def _fixes(analysis: Analysis, finding: WallFinding, situation: Situation | None) -> list[Advice]:
    """Returns the fixes of the diagnosed cause if it has its own; else those of the wall, or of both walls if neither
    is clearly larger."""
    diagnosis = analysis.diagnosis
    own = cure_of(diagnosis).fixes if diagnosis.wall is Wall.UNDETERMINED else ()
    if own:
        return [one for one in advice(analysis, finding.wall, situation) if one.fix in own]
    walls = dict.fromkeys([finding.wall, *(diagnosis.between if diagnosis.wall is Wall.UNDETERMINED else [])])
    found = [one for wall in walls for one in advice(analysis, wall, situation)]
    if len(walls) == 1:
        return found
    once: dict[str, Advice] = {}  # each fix once, for the wall where it gives most back
    for one in sorted(found, key=lambda one: -(one.gives_back_us or 0.0)):
        once.setdefault(one.fix, one)
    return list(once.values())


def _next_wall(analysis: Analysis) -> WallFinding | None:
    """Returns the verdict's wall; if none is named, the wall that its cause's fixes belong to, or the largest. None if
    it has nothing to recover and the run fits."""
    diagnosis = analysis.diagnosis
    under = cure_of(diagnosis).wall if diagnosis.wall is Wall.UNDETERMINED else None
    if under is not None and (found := diagnosis.finding(under)) is not None:
        return found
    named = diagnosis.finding(diagnosis.wall)
    largest = max(diagnosis.walls, key=lambda one: one.recoverable_us, default=None)
    finding = named or largest
    return finding if finding and (finding.recoverable_us > 0 or _does_not_fit(finding)) else None


def _does_not_fit(finding: WallFinding) -> bool:
    return finding.wall is Wall.MEMORY and finding.recoverable_us <= 0 and finding.share >= 1


def _sentences(
    analysis: Analysis, finding: WallFinding, found: Sequence[Advice], situation: Situation | None, nodes: int | None
) -> Iterator[str]:
    if _does_not_fit(finding):
        yield "The run does not fit. Fixes, least cost in step time first."
        if nodes is not None and situation is not None:
            yield nodes_words(situation.recipe, nodes)
    elif analysis.diagnosis.cause is not None and cure_of(analysis.diagnosis) is not NOTHING:
        yield f"Fixes for this cause, largest gain first: {analysis.diagnosis.headline}."
        yield advice_on(analysis.diagnosis.cause)
    elif analysis.diagnosis.between:
        yield f"Fixes for {' and '.join(analysis.diagnosis.between)}, most recoverable time first."
    elif analysis.diagnosis.wall is Wall.UNDETERMINED:
        yield f"No wall is named; {finding.wall} would be next, with at most {percent(finding.share)} of the step."
    else:
        yield f"Fixes for the {finding.wall} wall, most recoverable time first."
    if not found:
        yield "No known fix applies" + (" from this recipe." if situation else ".")
    elif situation is None:
        yield f"The recipe is not known (--recipe FILE): skip what is already on; {OPEN} is a size to choose."


def nodes_needed(recipe: Recipe) -> int | None:
    """Returns the fewest nodes on which a legal setting fits by estimate; None if one fits on the recipe's nodes, if
    none fits up to MAX_GPUS, without a memory limit, and on CPUs."""
    if recipe.hardware.is_cpu or recipe.memory_limit_gib is None or recipe.world_size > MAX_GPUS:
        return None
    if can_fit(recipe) and outline(recipe).scored.fits.any():
        return None
    return fewest_nodes(recipe, above=recipe.cluster.nodes)


def nodes_words(recipe: Recipe, nodes: int) -> str:
    """Returns the sentence that nothing fits on the recipe's nodes, and how many are needed."""
    has = counted(recipe.cluster.nodes, "node")
    return f"By estimate no legal setting fits on {has}; at least {nodes} are needed."


def _document(one: Advice) -> NextFix:
    return {
        "fix": one.fix,
        "title": one.title,
        "wall": one.wall,
        "gives_back_us": one.gives_back_us,
        "gain": one.gain,
        "flags": list(one.flags),
        "without": list(one.without),
        "settings": dict(one.settings),
        "changes": dict(one.changes),
        "costs": without_code_marks(ADVISED[one.fix].page.costs),
        "explain": f"{EXPLAIN} {one.fix}",
    }


def gives_back_words(fix: NextFix) -> str:
    """Returns `up to 134 ms per step (+62.0 %)`; empty if the fix frees memory instead of time."""
    if fix["gives_back_us"] is None:
        return ""
    return f"up to {duration(fix['gives_back_us'])} per step ({gain(fix['gain'])})"


def flag_words(fix: NextFix) -> str:
    """Returns the flags to add, and those to remove; for a fix without flags, what to write instead."""
    without = f"without {' '.join(fix['without'])}" if fix["without"] else ""
    words = (" ".join(fix["flags"]), without, settings_text(fix["settings"]))
    return ", ".join(part for part in words if part)


def show_next(console: Console, steps: NextSteps) -> None:
    console.print()
    say(console, "what to try next", style="bold")
    say(console, without_code_marks(steps.said))
    if steps.record:
        say(console, without_code_marks(steps.record), lead="to be sure, record: ")
    for number, fix in enumerate(steps.fixes[:FIXES_SHOWN], 1):
        title = ": ".join(part for part in (fix["title"], gives_back_words(fix)) if part)
        say(console, title, lead=f" {number}. ")
        say(console, flag_words(fix), lead="    ")
        say(console, f"costs: {fix['costs']} [{fix['fix']}]", lead="    ", style="dim")
    left = len(steps.fixes) - FIXES_SHOWN
    more = f"{left} more in --html and --json; " if left > 0 else ""
    if steps.fixes:
        say(console, f"{more}details of a fix: {EXPLAIN} {steps.fixes[0]['fix']}", style="dim")
