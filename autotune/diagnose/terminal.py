"""Terminal output of `diagnose`: the verdict, where the step goes, then the evidence; about one screen.

The page has every kernel, range and rank; the terminal shows the largest ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console

from analyzers.diagnosis import (
    Analysis,
    Diagnosis,
    KernelTime,
    MemoryUse,
    RankTime,
    Stretch,
    TraceReport,
    Wall,
    WallFinding,
)
from analyzers.kernel_classes import UNKNOWN_PRECISION
from analyzers.memory.phases import OUTSIDE
from analyzers.wording import part_name
from autotune.diagnose.next_steps import NextSteps, show_next
from autotune.looks.kernel_names import cut, short_name
from autotune.looks.letter_bars import print_bars
from autotune.looks.quantities import UNMEASURED, counted, duration, gib, percent
from autotune.looks.segments import (
    Segment,
    counted_steps,
    judged_steps,
    mean_segments,
    mean_step_us,
    mean_us,
    segments,
    slowest,
    steps_of,
    within,
    words_of,
)
from autotune.looks.text_tables import print_table
from autotune.looks.wrapping import plain_console, say

BARS_SHOWN = 12  # most steps shown one by one; if there are more, averages of the slowest ranks
SHOWN = 0.0005  # fraction of a step: less would read as 0.0 %
PARTS_SHOWN = 5  # parts shown per kind of time, largest first
KERNELS_SHOWN = 5
RANGES_SHOWN = 4
RANKS_SHOWN = 6
EVIDENCE_SHOWN = 3  # lines of evidence for each wall except the first
NAME_COLUMNS = 40  # most characters of a file's name
NOT_A_VERDICT = "The rest of the trace shows the following; it is not a verdict."
UNKNOWN_SHOWN = 3  # longest kernels without a row in kernels.csv


def show_analysis(analysis: Analysis, steps: NextSteps | None = None) -> None:
    """Prints the verdict, each step of each rank by part, the walls with their evidence, what was not classified, and
    what to try next."""
    console = plain_console()
    _say_verdict(console, analysis)
    trace = slowest(analysis)
    if trace is not None:
        say(console, described(analysis.traces), style="dim")
    if trace is not None and mean_step_us(trace) > 0:  # a memory snapshot has no step times
        console.print()
        print_bars(console, _step_rows(analysis))
        _print_shares(console, analysis)
    _print_walls(console, analysis.diagnosis)
    if trace is not None:
        _print_ranks(console, analysis.ranks)
        _print_memory(console, trace.memory)
        _print_kernels(console, trace)
        _print_ranges(console, trace)
    _print_coverage(console, analysis.traces)
    if steps is not None:
        show_next(console, steps)


def described(traces: Sequence[TraceReport]) -> str:
    """Returns the input of the verdict: `2 ranks, 3 marked steps, kineto, on GPUs`."""
    first = traces[0]
    steps = min(len(trace.steps) for trace in traces)
    ranks = counted(len(traces), "rank") if len(traces) > 1 else first.path.rsplit("/", 1)[-1]
    if mean_step_us(first) == 0:
        return f"{ranks}, {first.format}, no time"
    kind = "marked step" if all(trace.steps_marked for trace in traces) else "range used as step"
    marked = counted(steps, kind).replace("range used as steps", "ranges used as steps")
    marked = marked if steps else f"no step markers: {stretch_words(first.stretch)} as one"
    formats = " and ".join(sorted({trace.format for trace in traces}))
    where = "on CPUs" if not any(trace.devices for trace in traces) else "on GPUs"
    where = f"simulated: {UNMEASURED}" if any(trace.simulated for trace in traces) else where
    return f"{ranks}, {marked}, {formats}, {where}"


def stretch_words(stretch: Stretch) -> str:
    """Returns `the whole trace`, or the stretch of it that was analysed."""
    if stretch.whole:
        return "the whole trace"
    since = "" if stretch.from_us is None else f" from {duration(stretch.from_us)}"
    until = "" if stretch.to_us is None else f" to {duration(stretch.to_us)}"
    of = "the trace" if stretch.range is None else f"range {stretch.range}"
    return f"{of}{since}{until}"


def rank_words(trace: TraceReport, traces: Sequence[TraceReport] = ()) -> str:
    """Returns the name of a trace among others; empty for a single trace without a rank."""
    if trace.rank is not None:
        return f"rank {trace.rank}"
    if len(traces) == 1:
        return ""
    alone = sum(other.path == trace.path for other in traces) < 2
    device = "" if alone or not trace.devices else f" device {trace.devices[0]}"
    return cut(trace.path.rsplit("/", 1)[-1], NAME_COLUMNS) + device


def recoverable_words(analysis: Analysis) -> str:
    """Returns `up to 72.5 ms (31.0 %) of the step`: the time that the verdict's wall could recover, or that is lost to
    the cause of a verdict without a wall; empty if both are unknown."""
    diagnosis = analysis.diagnosis
    finding, cause = diagnosis.finding(diagnosis.wall), diagnosis.cause
    whole = "the step" if any(trace.steps for trace in analysis.traces) else "the trace"
    if finding is not None and finding.recoverable_us > 0:
        return f"up to {duration(finding.recoverable_us)} ({percent(finding.share)}) of {whole}"
    if finding is None and cause is not None and cause.lost_us > 0:
        return f"{duration(cause.lost_us)} ({percent(cause.share)}) of {whole}"
    return ""


def cause_evidence(diagnosis: Diagnosis) -> list[str]:
    """Returns the evidence of a verdict's cause."""
    return diagnosis.cause.evidence if diagnosis.cause is not None else []


def _say_verdict(console: Console, analysis: Analysis) -> None:
    diagnosis = analysis.diagnosis
    named = diagnosis.wall is not Wall.UNDETERMINED or diagnosis.cause is None
    said = (diagnosis.cut_short, f"{'wall: ' if named else ''}{diagnosis.headline}", recoverable_words(analysis))
    say(console, f"{', '.join(filter(None, said))}{'' if named else ' (no wall)'}", style="bold")
    say(console, diagnosis.because)
    for line in cause_evidence(diagnosis):
        say(console, line, lead="  - ")


def _step_rows(analysis: Analysis) -> list[tuple[str, list[Segment]]]:
    """Returns every step of every rank; if there are too many, the average steps of the slowest ranks and the worst
    step."""
    traces = analysis.traces
    every = [
        (f"{rank_words(trace, traces)} {step.name or 'whole trace'}".strip(), segments(step))
        for trace in traces
        for step in steps_of(trace)
    ]
    if len(every) <= BARS_SHOWN:
        return every
    ranks = sorted(traces, key=mean_step_us, reverse=True)[: BARS_SHOWN - 1]
    rows = [
        (
            f"{rank_words(trace, traces)} average of {len(counted_steps(trace))}".strip(),
            mean_segments(counted_steps(trace)),
        )
        for trace in ranks
    ]
    trace, worst = max(((t, s) for t in traces for s in steps_of(t)), key=lambda found: found[1].duration_us)
    return [*rows, (f"worst: {rank_words(trace, traces)} {worst.name}".replace("  ", " "), segments(worst))]


def _print_shares(console: Console, analysis: Analysis) -> None:
    """Prints the step that the walls are judged by, by kind of time, with what each kind consists of."""
    steps = judged_steps(analysis)
    step_us = mean_us(steps)
    parts = [part for part in mean_segments(steps) if part.us / step_us >= SHOWN]
    room = max(len(part.kind.words) for part in parts) if parts else 0
    console.print()
    say(console, f"{judged_words(analysis)}, {duration(step_us)}", style="bold")
    for part in parts:
        made_of = ", ".join(
            f"{words_of(name)} {duration(us)}"
            for name, us in within(part.kind, steps)[:PARTS_SHOWN]
            if us / step_us >= SHOWN
        )
        lead = f" {part.kind.words:<{room}} {duration(part.us):>8} {percent(part.us / step_us):>7}  "
        _print_with_lead(console, lead, made_of)


def judged_words(analysis: Analysis) -> str:
    """Returns the step that the walls are judged by: `average step of rank 1`, or which rank in how many steps."""
    if not any(trace.steps for trace in analysis.traces):
        return "whole trace"
    traces = analysis.traces
    judged = [traces[one.trace] for one in analysis.judged] or [trace for trace in [slowest(analysis)] if trace]
    ranks = Counter(rank_words(trace, traces) for trace in judged)
    if len(ranks) == 1:
        (of,) = ranks
        return f"average step of {of}" if of else "average step"
    often = ", ".join(f"{rank} in {counted(steps, 'step')}" for rank, steps in ranks.most_common())
    return f"average step of the slowest rank ({often})"


def _print_with_lead(console: Console, lead: str, text: str) -> None:
    """Prints the text in its own column right of the lead, or below it if that column would be too narrow."""
    if console.width - len(lead) >= 30:
        say(console, text, lead=lead)
        return
    console.print(lead.rstrip(), soft_wrap=True)
    if text:
        say(console, text, lead="     ")


def _print_walls(console: Console, diagnosis: Diagnosis) -> None:
    """Prints each wall with its evidence, all of it for the first; walls with nothing to recover in one line each."""
    walls = diagnosis.walls
    if diagnosis.cut_short and walls:
        console.print()
        say(console, NOT_A_VERDICT, style="bold")
    for index, finding in enumerate(walls):
        if finding.recoverable_us > 0:
            # `because` has quoted these lines already
            quoted = diagnosis.quoted if finding.wall is diagnosis.wall else []
            more = [line for at, line in enumerate(finding.evidence) if at not in quoted]
            evidence = more if index == 0 else more[:EVIDENCE_SHOWN]
            left = len(more) - len(evidence)
            console.print()
            say(console, f"{finding.wall.value}: {gives_back(finding)}", style="bold")
            for said in (*evidence, *([f"{left} more in --html and --json"] if left else [])):
                say(console, said, lead="  - ")
    nothing = [finding for finding in walls if finding.recoverable_us <= 0]
    if nothing:
        console.print()
    for finding in nothing:
        say(console, f"{gives_back(finding)}: {'; '.join(finding.evidence)}", lead=f"{finding.wall.value}: ")


def gives_back(finding: WallFinding) -> str:
    """Returns the recoverable time of a wall, or why it has none."""
    if finding.recoverable_us > 0:
        return f"up to {duration(finding.recoverable_us)}, {percent(finding.share)} of the step"
    return "the run does not fit" if finding.wall is Wall.MEMORY and finding.share >= 1.0 else "nothing to recover"


def _print_ranks(console: Console, ranks: Sequence[RankTime]) -> None:
    """Prints the ranks with the most own time, and how late they arrive."""
    if len(ranks) < 2:
        return
    shown = sorted(ranks, key=lambda rank: -rank.own_us)[:RANKS_SHOWN]
    rows = [
        (
            rank_number(rank),
            duration(rank.step_us),
            duration(rank.own_us),
            duration(rank.waiting_us),
            late_words(rank),
        )
        for rank in shown
    ]
    left = len(ranks) - len(shown)
    title = f"ranks, most own time first{f' ({left} more not shown)' if left else ''}"
    print_table(console, title, ("rank", "step", "own", "waits", "<late"), rows)


def rank_number(rank: RankTime) -> str:
    return str(rank.rank) if rank.device is None else f"{rank.rank} device {rank.device}"


def late_words(rank: RankTime) -> str:
    """Returns `7.0 ms to EP combine, behind in grouped_gemm`; empty for a rank that is not late."""
    if rank.late_us <= 0:
        return ""
    kind = f" to {part_name(rank.late_to)}" if rank.late_to else ""
    part = f", behind in {part_name(rank.late_in)}" if rank.late_in else ""
    return f"{duration(rank.late_us)}{kind}{part}"


def _print_memory(console: Console, memory: MemoryUse | None) -> None:
    if memory is None:
        return
    console.print()
    say(console, memory_words(memory), lead="memory: ")


def _during(phase: str | None) -> str:
    if not phase:
        return ""
    return phase if phase == OUTSIDE else f"during {phase}"


def memory_words(memory: MemoryUse) -> str:
    """Returns the peak and what is known about it, in one sentence."""
    when = f" in {memory.peak_step}" if memory.peak_step else ""
    into = f", {percent(memory.peak_at_share, 0)} into it" if when and memory.peak_at_share is not None else ""
    facts = [
        f"peak {gib(memory.peak_gib)}{f' of {gib(memory.limit_gib)}' if memory.limit_gib else ''}{when}{into}",
        _during(memory.peak_phase),
        f"reserved {gib(memory.reserved_gib)}" if memory.reserved_gib is not None else "",
        f"fragmentation {gib(memory.fragmentation_gib)}" if memory.fragmentation_gib is not None else "",
        counted(memory.allocator_retries, "allocator retry").replace("retrys", "retries")
        if memory.allocator_retries
        else "",
        f"{memory.driver_allocations} cudaMalloc and cudaFree calls inside steps" if memory.driver_allocations else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def _print_kernels(console: Console, trace: TraceReport) -> None:
    ranked = sorted(trace.kernels, key=lambda kernel: (-kernel.total_us, kernel.name))[:KERNELS_SHOWN]
    figures = [(duration(one.total_us), f"{one.count:,}", kernel_class(one)) for one in ranked]
    taken = sum(max([len(cells[at]) for cells in figures] + [4]) + 2 for at in range(3))
    room = max(console.width - taken - 1, 20)
    rows = [(*cells, short_name(one.name, room)) for cells, one in zip(figures, ranked, strict=True)]
    print_table(console, "longest kernels of the whole trace", ("time", "runs", "<class", "<kernel"), rows)


def kernel_class(kernel: KernelTime) -> str:
    """Returns `ep_dispatch`, `gemm bf16`: the kind of a communication kernel, else the class, and the precision if
    known."""
    kind = kernel.compute_class if kernel.kind in (None, "other") else kernel.kind
    return f"{kind} {precision(kernel)}".rstrip()


def precision(kernel: KernelTime) -> str:
    """Returns the input precision of a GEMM kernel; empty if its name does not contain it."""
    return "" if kernel.precision in (None, UNKNOWN_PRECISION) else str(kernel.precision)


def _print_ranges(console: Console, trace: TraceReport) -> None:
    inner = [one for one in trace.ranges if one.name not in {step.name for step in trace.steps}]
    ranked = sorted(inner, key=lambda one: (-one.device_all_threads_us, -one.host_us, one.name))[:RANGES_SHOWN]
    rows = [
        (duration(one.device_all_threads_us), duration(one.host_us), f"{one.count:,}", short_name(one.name, 40))
        for one in ranked
    ]
    print_table(console, "ranges of the whole trace", ("on the device", "on the host", "times", "<range"), rows)


def _print_coverage(console: Console, traces: Sequence[TraceReport]) -> None:
    """Prints what was not classified or was dropped, once for all ranks with the same note."""
    if not traces:
        return
    console.print()
    for said in notes(traces):
        say(console, said, lead="note: ", style="dim")


def notes(traces: Sequence[TraceReport], unknown_shown: int = UNKNOWN_SHOWN) -> list[str]:
    """Returns the lowest coverage, the longest unknown kernels, what was dropped, and every warning once."""
    classified = min(trace.coverage.device_time_classified for trace in traces)
    unknown: dict[str, float] = {}
    for trace in traces:
        for one in trace.coverage.kernels_unknown:
            unknown[one.name] = max(unknown.get(one.name, 0.0), one.total_us)
    longest = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:unknown_shown]
    timed = any(mean_step_us(trace) > 0 for trace in traces)
    return [
        *([f"{percent(classified)} of device time is in known kernels"] if timed else []),
        *(f"unknown kernel {short_name(name, 64)}: {duration(us)}" for name, us in longest),
        *([f"{len(unknown) - len(longest)} more unknown kernels"] if len(unknown) > len(longest) else []),
        *_once(f"{lost.count} {lost.what} dropped: {lost.why}" for trace in traces for lost in trace.coverage.dropped),
        *_once(warning for trace in traces for warning in trace.warnings),
    ]


def _once(said: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(said))
