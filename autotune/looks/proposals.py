"""Renders the reasons of proposals, of the end of a search and of rejected ideas: evidence first, then the
prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from analyzers.diagnosis import Wall
from analyzers.walls import wall_kinds
from autotune.looks.quantities import counted, gain, gib, percent
from autotune.looks.releases import releases_text
from policies.fixes import FIXES
from policies.reason import ReasonKind
from trainer.estimate.time.parts import STEP_PARTS

Figures = Mapping[str, Any]
PARTS_NAMED = 3  # parts of the step in a reason
NOTABLE = 0.005  # fraction of a step; smaller changes of a part are not named
EQUALLY_GOOD = 0.0005  # fraction of throughput
LONGEST_EVIDENCE = 120  # characters of a trainer's error message

# part of `WallFinding.parts` → the subject of "... for 31 % of the step"
PART_WORDS = {
    "ep_dispatch": "EP dispatch is exposed",
    "ep_combine": "EP combine is exposed",
    "ep_notify": "EP notify is exposed",
    "all_to_all": "an all-to-all is exposed",
    "tp": "TP communication is exposed",
    "cp": "CP communication is exposed",
    "pp": "PP send/recv is exposed",
    "dp": "DP communication is exposed",
    "bubble": "the pipeline is idle (bubble)",
    "experts_load": "ranks wait for the one with the most expert work",
    "uneven_stages": "pipeline stages wait for the slowest one",
    "recompute": "forward work is recomputed",
    "offload_copies": "copies of offloaded tensors are exposed",
    "allocator": "the allocator frees and requests driver memory again",
    "garbage_collection": "the device waits for garbage collection",
    "launching": "the device waits for launches",
    "operators": "the device waits for the framework's operators",
    "python": "the device waits for Python",
    "outside_calls": "the device waits for the host's code between launches",
}
SEVERAL_WALLS = "time is lost to several walls"


def _sentence(*clauses: str | None) -> str:
    return "; ".join(clause for clause in clauses if clause)


def _wall(found: Figures | None) -> str | None:
    if found is None:
        return None
    words = found["headline"] if "cause" in found else _loses(Wall(found["wall"]))
    return f"{words} for {_share(found['lost_us'], found['step_us'])}"


def _loses(wall: Wall) -> str:
    return SEVERAL_WALLS if wall is Wall.UNDETERMINED else wall_kinds()[wall].loses


def _share(us: float, step_us: float) -> str:
    share = us / step_us if step_us else 0.0
    return f"{percent(share, 0)} of the step ({_ms(us)} of {_ms(step_us)} ms)"


def _ms(us: float) -> str:
    return f"{us / 1000:.3g}" if us < 1e6 else f"{us / 1000:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _parts(parts: Mapping[str, list[float]]) -> str:
    """Returns `predicted: TP exposed 31 ms → 0 ms, …`: the parts of the step with the largest predicted changes."""
    step = sum(was for was, _ in parts.values())
    largest = sorted(parts, key=lambda name: -abs(parts[name][1] - parts[name][0]))[:PARTS_NAMED]
    named = [
        f"{STEP_PARTS[name]} {_seconds(parts[name][0])} → {_seconds(parts[name][1])}"
        for name in largest
        if abs(parts[name][1] - parts[name][0]) > NOTABLE * step
    ]
    return f"predicted: {', '.join(named)}" if named else "no part of the step is predicted to change by much"


def _gain(figures: Figures) -> str:
    between = f"{gain(figures['gain_low'])} to {gain(figures['gain_high'])}"
    return f"{gain(figures['gain'])} throughput (90 %: {between})"


def _fits(probability: float) -> str:
    return f"P(fits) {100 * min(probability, 0.999):.3g} %"


def _runner_up(figures: Figures) -> str:
    behind = figures.get("runner_up")
    if behind is None:
        return "the only candidate in this phase"
    if behind <= EQUALLY_GOOD:
        return "the runner-up is predicted equally good"
    return f"the runner-up is predicted to gain {percent(behind, 0 if behind >= 0.01 else 1)} less"


def _learned(learned: Figures) -> str:
    trials, traced = learned["trials"], learned["traced"]
    own = f"learned from {counted(trials, 'trial')} of this study, {traced} of them traced" if trials else ""
    lessons = [
        f"{each['trials']} of {each['study']}" if each["trials"] else each["study"] for each in learned["lessons"]
    ]
    tables = "from the tables only" if learned.get("imagined") else "from the tables only: no burst yet"
    others = f"and from {', '.join(lessons)}" if lessons else ""
    return ", ".join(part for part in (own or tables, others) if part)


def _failed(failed: Figures) -> str:
    """Returns `trial 0 ran out of memory in forward on rank 3 (limit 79.00 GiB)`."""
    if failed["kind"] is None:
        return f"trial {failed['trial']} does not fit its memory"
    phase = f" in {failed['phase']}" if failed["phase"] else ""
    rank = f" on rank {failed['rank']}" if failed["rank"] is not None else ""
    limit = f" (limit {failed['limit_gib']:.2f} GiB)" if failed["limit_gib"] else ""
    ran_out = "does not fit by estimate" if failed.get("by_estimate") else "ran out of memory"
    return f"trial {failed['trial']} {ran_out}{phase}{rank}{limit}"


def _first(how: str) -> Callable[[Figures], str]:
    def words(figures: Figures) -> str:
        step = f"predicted {figures['step_s']:.3g} s per step ± {percent(figures['spread'], 0)}"
        fits = _fits(figures["fits_probability"])
        return _sentence(_failed(figures["failed"]), f"{how}: {step}, {fits}", _learned(figures["learned"]))

    return words


def _fit_set(figures: Figures) -> str:
    titles = " with ".join(FIXES[name].title for name in figures["fixes"])
    limit = f" of {gib(figures['limit_gib'])}" if figures["limit_gib"] else ""
    peak = f"{gib(figures['peak_gib'])}{limit} predicted, {_fits(figures['fits_probability'])}"
    return _sentence(_failed(figures["failed"]), f"{titles} is the cheapest change that may fit: {peak}")


def _improvement(figures: Figures) -> str:
    clauses = (_wall(figures["wall"]), _parts(figures["parts"]), _gain(figures), _fits(figures["fits_probability"]))
    return _sentence(*clauses, _runner_up(figures), _learned(figures["learned"]))


def _sampled(figures: Figures) -> str:
    nearest = f"the candidate nearest to the point that {figures['sampler']} samples"
    clauses = (_parts(figures["parts"]), _gain(figures), _fits(figures["fits_probability"]))
    return _sentence(nearest, *clauses, _learned(figures["learned"]))


def _claimed(figures: Figures) -> str:
    step_us = figures["step_us"]
    named = [
        f"{PART_WORDS.get(each['part'], each['part'])} for {_share(each['lost_us'], step_us)}"
        for each in figures["parts"][:2]
    ]
    claim = (
        f"{FIXES[figures['fix']].title} should recover {_ms(figures['claimed_us'])} ms of it: "
        f"{gain(figures['gain'])} expected, at most {gain(figures['gain_bound'])}"
    )
    fits = _fits(figures["fits_probability"])
    return _sentence(", ".join(named) or _wall(figures["wall"]), claim, fits, "the estimate does not model it")


def _published(figures: Figures) -> str:
    walls = " or ".join(figures["walls"])
    bound = figures["gain_bound"]
    most = f" (at most {percent(bound)} by the trace)" if bound is not None else ""
    text = (
        f"the estimate does not model {figures['knob']}, which acts on {walls}{most}; one setting at a time: "
        f"{gain(figures['gain'])} ± {percent(figures['spread'], 0)} predicted from published results "
        f"({figures['evidence']}; effects.csv {figures['source']})"
    )
    return _sentence(_wall(figures["wall"]), text)


def _nothing_fits(figures: Figures) -> str:
    if figures.get("left"):  # only the budget ended the search; older journals do not say
        return _sentence(f"no recipe ran: {figures['tried']} tried, and others should fit", _spent(figures))
    nodes = figures["fewest_nodes"]
    needs = (
        f"by estimate it needs at least {nodes} of these nodes"
        if nodes is not None
        else f"by estimate it fits on no cluster of up to {figures['most_gpus']:,} of these GPUs"
    )
    text = f"no legal recipe was found that fits: {figures['tried']} tried, and nothing left is predicted to fit"
    return _sentence(text, needs, _spent(figures))


def _no_remedy(figures: Figures) -> str:
    failed = f"the recipe failed ({figures['kind'] or 'unknown'}), and no fix addresses that"
    versions = figures.get("versions")
    if not versions or figures["kind"] not in ("crash", "import") or figures["phase"] not in ("start", "init"):
        return _sentence(failed, _spent(figures))
    blamed = f"it ended before its first step, which may be the releases and not the recipe: {releases_text(versions)}"
    return _sentence(failed, blamed, _spent(figures))


def _spent(figures: Figures) -> str | None:
    kept = f", {figures['reserved']} are kept for the ablation" if "reserved" in figures else ""
    return f"{figures['bursts']} of {figures['budget']} bursts are used{kept}" if "bursts" in figures else None


def _impatient(figures: Figures) -> str | None:
    patience = figures.get("patience")
    if patience is None:
        return None
    return f"{patience} settings in a row that the estimate does not model brought no gain (tune.patience)"


def _nothing_left(figures: Figures) -> str:
    noise = figures["noise"]
    by = f" (two bursts differ by up to {percent(noise)})" if noise else ""
    return _sentence(f"no legal recipe is left that could gain more than the noise{by}", _impatient(figures))


def _next_gain(figures: Figures) -> str:
    return f"the next burst is expected to gain {_improvement_percent(figures)}"


def _improvement_percent(figures: Figures) -> str:
    improvement = 100 * figures["expected_improvement"]
    return f"{improvement:.2g} %" if improvement >= 0.01 else "less than 0.01 %"


def _not_worth(figures: Figures) -> str:
    above = figures["expected_improvement"] >= figures["limit"]
    return _sentence(
        _next_gain(figures) if above else f"{_next_gain(figures)}, below the limit of {percent(figures['limit'])}",
        _impatient(figures),
    )


def _too_expensive(figures: Figures) -> str:
    return (
        f"the next burst takes {figures['cost_gpu_hours']:.2g} {figures['unit']}-hours and is expected to save "
        f"{figures['saved_gpu_hours']:.2g} of the {figures['planned_gpu_hours']:g} planned for training "
        f"(tune.planned_gpu_hours)"
    )


def _out_of_patience(figures: Figures) -> str:
    bound = figures["gain_bound"]
    most = "the gain of the next is unknown" if bound is None else f"the next could gain {percent(bound)}"
    return (
        f"{figures['without_gain']} recipes in a row brought no gain (tune.patience), and {most}, within the noise "
        f"(±{percent(figures['noise'])})"
    )


def _hours_spent(figures: Figures) -> str:
    used = f"{figures['gpu_hours']:.3g} of {figures['max_gpu_hours']:g} {figures['unit']}-hours are used"
    return f"{used}, a burst takes about {figures['burst_gpu_hours']:.2g}"


def _deadline(figures: Figures) -> str:
    return f"the deadline was reached: {figures['at']}" if "at" in figures else "the deadline was reached"


def _refused_before(figures: Figures) -> str:
    named = ", ".join(f"{knob} {' or '.join(values)}" for knob, values in figures["values"].items())
    return f"trial {figures['trial']} was refused for {named}: {figures['evidence'][:LONGEST_EVIDENCE]}"


def _small(figures: Figures) -> str:
    return f"expected to gain {_improvement_percent(figures)}, below the limit of {percent(figures['limit'])}"


def _outranked(figures: Figures) -> str:
    if "expected_improvement" not in figures:
        return "the trace shows a loss that it acts on, but other changes are expected to gain more"
    return f"expected to gain {_improvement_percent(figures)}, less than other changes"


def _subset(figures: Figures) -> str:
    taken = figures["taken"]
    if len(taken) == figures["of"]:
        return "B: all differences"
    return f"A with {len(taken)} of {figures['of']} differences from B: {', '.join(taken)}"


def _taken_out(figures: Figures) -> str:
    few = f"{len(figures['taken'])} of {figures['of']} changes, {', '.join(figures['taken'])}"
    return f"the tuned recipe without {few}: {percent(figures['probability'], 0)} likely to lose nothing"


def _bisected(figures: Figures) -> str:
    sets = ", ".join(" together with ".join(each) for each in figures["culprits"])
    if not sets and not figures["confident"]:
        return "undecided: no further burst would distinguish the sets of differences"
    if not sets:
        return "no set of differences was found" if figures["symptom"] else "B is not slower than A beyond the noise"
    sure = "" if figures["confident"] else ", not certain"
    return f"{sets} ({percent(figures['probability'], 0)}{sure})"


SENTENCES: dict[ReasonKind, Callable[[Figures], str]] = {
    ReasonKind.BASE: lambda figures: "the base recipe",
    ReasonKind.SUBSET: _subset,
    ReasonKind.TAKEN_OUT: _taken_out,
    ReasonKind.BISECTED: _bisected,
    ReasonKind.FULL_SIZE: lambda f: (
        f"the {'best choice so far' if f['best'] else 'reference of the speed-up'}, at full size: "
        f"trial {f['trial']} measured its proxy"
    ),
    ReasonKind.REFERENCE: lambda f: (
        f"reference of the speed-up, the smallest change of the base recipe that should run: {_fit_set(f)}"
    ),
    ReasonKind.FITS_CHEAPEST: _fit_set,
    ReasonKind.FITS_FASTEST: _first("the fastest that should fit"),
    ReasonKind.FITS_LIKELIEST: _first("the highest P(fits) of all legal recipes"),
    ReasonKind.EXPECTED_IMPROVEMENT: _improvement,
    ReasonKind.SAMPLED: _sampled,
    ReasonKind.CLAIMED: _claimed,
    ReasonKind.PUBLISHED: _published,
    ReasonKind.NOTHING_FITS: _nothing_fits,
    ReasonKind.FAILED: _no_remedy,
    ReasonKind.NOTHING_LEFT: _nothing_left,
    ReasonKind.NOT_WORTH_A_BURST: _not_worth,
    ReasonKind.SAMPLER_EXHAUSTED: lambda f: f"{_next_gain(f)}, but {f['sampler']} (tune.sampler) proposes nothing more",
    ReasonKind.TOO_EXPENSIVE: _too_expensive,
    ReasonKind.OUT_OF_PATIENCE: _out_of_patience,
    ReasonKind.BUDGET_SPENT: lambda figures: _spent(figures) or "the budget is used",
    ReasonKind.GPU_HOURS_SPENT: _hours_spent,
    ReasonKind.DEADLINE_REACHED: _deadline,
    ReasonKind.INTERRUPTED: lambda figures: str(figures["because"]),
    ReasonKind.NOT_APPLICABLE: lambda figures: str(figures["because"]),
    ReasonKind.ILLEGAL: lambda figures: str(figures["because"]),
    ReasonKind.ALREADY_TRIED: lambda figures: f"already tried as trial {figures['trial']}",
    ReasonKind.REFUSED_BEFORE: _refused_before,
    ReasonKind.MISSING_SOFTWARE: lambda f: f"{f['knobs']} needs {f['software']}, which trial {f['trial']} ran without",
    ReasonKind.LOST_BEFORE: lambda figures: f"trial {figures['trial']} made this change without a gain",
    ReasonKind.UNDONE_BEFORE: lambda figures: f"trial {figures['trial']} gained by the opposite change",
    ReasonKind.MAY_NOT_FIT: lambda f: f"unlikely to fit: a burst needs P(fits) of {percent(f['asked'], 0)}",
    ReasonKind.PREDICTED_LOSS: lambda figures: "predicted to be slower",
    ReasonKind.LOST_IN_NOISE: lambda f: f"the gain would be lost in the noise of {percent(f['noise'])}",
    ReasonKind.NO_EVIDENCE: lambda figures: (
        "the estimate predicts no effect, and the trace shows no loss that it acts on"
    ),
    ReasonKind.OUTRANKED: _outranked,
    ReasonKind.TOO_LITTLE: _small,
}
