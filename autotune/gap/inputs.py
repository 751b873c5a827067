"""Reads one of the two compared runs from what the command line names: a log, traces, a study or trial, or a recipe."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal

from analyzers import Analysis
from analyzers.analysis import Progress, silent
from analyzers.diagnosis import WHOLE
from analyzers.inputs import TRACE_SUFFIXES
from autotune.diagnose.traced import analysis_at, situation_of_traces, trial_at
from autotune.diagnose.traced import input_files as trace_files
from autotune.export.source import source_at
from autotune.gap.logs import Steps, log_of
from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from autotune.looks.segments import counted_steps, mean_us, slowest
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_study
from policies.noise import median_error
from policies.trial import Trial
from trainer.burst import Failure, FailureKind
from trainer.errors import BadInputError, refused
from trainer.frameworks.megatron_lm.flags import flags_of
from trainer.frameworks.megatron_lm.spelling import SPELLED
from trainer.frameworks.registry import readers
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.source import packaged_examples

Source = Literal["log", "trace", "study", "recipe"]
YAML, LOGS = (".yaml", ".yml"), (".log", ".out", ".err")
MAX_LOG_BYTES = 2**28  # larger logs are refused


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two compared runs: its recipe and its measured step, as far as known.

    `unsaid`: knobs that its source does not record.
    """

    name: str
    source: Source
    recipe: Recipe | None
    steps: Steps | None = None
    analysis: Analysis | None = None
    unsaid: tuple[str, ...] = ()
    simulated: bool = False
    ended: Failure | None = None  # NaN or a failure that ended the run early
    trace: Path | None = None  # the argument of --trace
    probe: Path | None = None  # the argument of --probe
    options: tuple[str, ...] = ()  # options of the command line for this run

    @property
    def words(self) -> str:
        """Returns the run and its options as shell words."""
        return shlex.join((self.name, *self.options))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for one run: the cluster and vocabulary that its file lacks, and its `recipe`, `trace` and `probe`.

    `more`: options of the comparison, by flag.
    """

    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    vocab_size: int | None = None
    recipe: str | None = None
    trace: Path | None = None
    probe: Path | None = None
    more: Mapping[str, str | Path | None] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        given = {
            "--gpu": self.gpu,
            "--nodes": self.nodes,
            "--gpus-per-node": self.gpus_per_node,
            "--vocab-size": self.vocab_size,
            "--recipe": self.recipe,
            "--trace": self.trace,
            "--probe": self.probe,
            **self.more,
        }
        return tuple(word for flag, value in given.items() if value is not None for word in (flag, str(value)))


@cache
def missing_from_logs() -> tuple[str, ...]:
    """Returns the knobs without an argument of Megatron-LM, which its log cannot show: variables, core binding,
    arguments of other programs."""
    return tuple(name for name in KNOBS if not flags_of(name) and name not in SPELLED)


def side_of(named: str, options: RunOptions, progress: Progress = silent) -> Side:
    """Returns the run that a path, a packaged example or STUDY/TRIAL names.

    Raises BadInputError for any other name, for a log without arguments unless --recipe is given, and for a log, trace
    or trial that gives no step.
    """
    path = Path(named)
    found = replace(_reader_of(path)(named, options, progress), options=options.words, probe=options.probe)
    if options.trace is not None:
        found = replace(found, analysis=analysis_at(options.trace, WHOLE, progress), trace=options.trace)
    if found.analysis is not None:
        found = replace(found, simulated=found.simulated or found.analysis.simulated)
    return found


def input_files(*named: str | Path | None) -> tuple[Path, ...]:
    """Returns the files and folders that are read for these names; no output may replace them."""
    return trace_files([Path(each) for each in named if each is not None])


def _reader_of(path: Path) -> Callable[[str, RunOptions, Progress], Side]:
    if (path / JOURNAL).is_file() or trial_at(path) is not None:
        return _study
    if path.is_dir() or (str(path).lower().endswith(TRACE_SUFFIXES) and not _is_text_of_a_trainer(path)):
        return _trace
    if path.suffix in YAML or (str(path) in packaged_examples() and not path.is_file()) or not path.exists():
        return _recipe
    return _log


def _is_text_of_a_trainer(path: Path) -> bool:
    """Returns whether a .json file holds arguments that `import` reads rather than a trace."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return b"traceEvents" not in head and b'"ph"' not in head


def _recipe(named: str, options: RunOptions, progress: Progress) -> Side:
    return Side(name=named, source="recipe", recipe=_given_recipe(options) or load_recipe(named))


def _log(named: str, options: RunOptions, progress: Progress) -> Side:
    """Reads a log; a launch script or a file of arguments gives only its recipe."""
    path = Path(named)
    if path.stat().st_size > MAX_LOG_BYTES:
        raise refused(named, "it is too large for a log", "name the log of rank 0 of one run")
    text = path.read_text(encoding="utf-8", errors="replace")
    log = log_of(text)
    says = any(reader.log is not None and reader.log.fits(text) for _, reader in readers())
    # a script may quote a failure in a comment
    steps, ended = log.steps, log.ended if log.steps is not None or says or path.suffix in LOGS else None
    none = steps is None and ended is None
    if none and not says and path.suffix in LOGS:
        raise refused(
            named, "it has neither an iteration nor a dump of arguments", "name the log of rank 0 of a run that trained"
        )
    if none and not says:
        return Side(name=named, source="recipe", recipe=_given_recipe(options) or _imported(named, options))
    recipe = _given_recipe(options)
    if steps is None and ended is not None and ended.kind is FailureKind.OOM:
        raise _out_of_memory(named, ended, says=says, gpu=options.gpu)
    if steps is None and ended is not None:
        raise refused(named, f"no step of it is a number: {ended.evidence}", "fix that first; its speed says nothing")
    if steps is None:
        raise refused(
            named, "it has no iteration: the run ended before its first step", "name the log of a run that trained"
        )
    if recipe is None and not says:
        raise refused(
            named,
            "it has iterations, and no dump of the arguments that they ran with",
            "name the recipe with --recipe FILE: a recipe, or the launch script or configuration of this run",
        )
    if recipe is not None:
        return Side(name=named, source="log", recipe=recipe, steps=steps, ended=ended)
    recipe = _imported(named, options)
    return Side(name=named, source="log", recipe=recipe, steps=steps, ended=ended, unsaid=missing_from_logs())


def _out_of_memory(named: str, ended: Failure, *, says: bool, gpu: str | None) -> BadInputError:
    """Returns the error for the log of a run that ran out of memory before its first step; says: it dumped its
    arguments."""
    found = f"the run ran out of memory before its first step: {ended.evidence}"
    words = shlex.join(("moe-autotune", "import", named, *(("--gpu", gpu) if gpu else ()), "-o", "recipe.yaml"))
    imported = f"`{words}`, then " if says else ""
    hint = f"{imported}`moe-autotune plan recipe.yaml` shows what fits; name the log of a run that trained"
    return refused(named, found, hint)


def _trace(named: str, options: RunOptions, progress: Progress) -> Side:
    path = Path(named)
    analysis = analysis_at(path, WHOLE, progress)
    situation = situation_of_traces([path], analysis)
    recipe = _given_recipe(options) or (situation.recipe if situation else None)
    trace = slowest(analysis)
    if recipe is not None and trace is not None and not trace.steps:
        raise refused(
            named,
            "it marks no steps: its length is not a step's",
            "name the log of this run, or the trace without --recipe",
        )
    outcome = situation.outcome if situation else None
    if outcome is not None and outcome.ok and outcome.step_us:
        steps: Steps | None = _measured(outcome.step_us)
    else:
        steps = _traced_steps(analysis)
    ended = None if outcome is None else outcome.failure
    return Side(name=named, source="trace", recipe=recipe, steps=steps, analysis=analysis, ended=ended)


def _traced_steps(analysis: Analysis) -> Steps | None:
    """Returns the average step of the slowest rank; the length of its trace if no steps are marked; None without a
    trace."""
    trace = slowest(analysis)
    if trace is None:
        return None
    steps = counted_steps(trace)
    return Steps(
        step_s=mean_us(steps) / 1e6, deviation=median_error([step.duration_us for step in steps]), count=len(steps)
    )


def _study(named: str, options: RunOptions, progress: Progress) -> Side:
    source = source_at(named)
    path = Path(named)
    if path.is_dir():
        history = read_study(path)
        trial = history.best
    else:
        history, trial = read_study(path.parent), trial_at(path)
    if trial is None or not any(outcome.ok and outcome.step_us for outcome in trial.outcomes):
        raise refused(named, "no step of it was measured", "name a trial that ran")
    return _of_trial(named, options, source.recipe, history, trial)


def _of_trial(named: str, options: RunOptions, recipe: Recipe, history: History, trial: Trial) -> Side:
    medians = [_measured(outcome.step_us) for outcome in trial.outcomes if outcome.ok and outcome.step_us]
    steps = Steps(
        step_s=median(each.step_s for each in medians),
        deviation=max(each.deviation for each in medians),
        count=sum(each.count for each in medians),
    )
    return Side(
        name=named,
        source="study",
        recipe=_given_recipe(options) or recipe,
        steps=steps,
        analysis=trial.analysis,
        simulated=history.simulated,
    )


def _measured(step_us: list[float]) -> Steps:
    """Returns the median of steps, µs, that are without the warm-up already."""
    return Steps(step_s=median(step_us) / 1e6, deviation=median_error(step_us), count=len(step_us))


def _given_recipe(options: RunOptions) -> Recipe | None:
    """Returns the recipe of --recipe: a recipe file, or any file that `import` reads."""
    if options.recipe is None:
        return None
    path = Path(options.recipe)
    if path.is_file() and path.suffix not in YAML:
        return _imported(options.recipe, options)
    try:
        return load_recipe(options.recipe)
    except BadInputError:
        if path.is_file():  # a configuration that Megatron-Bridge dumped is YAML as well
            return _imported(options.recipe, options)
        raise


def _imported(named: str, options: RunOptions) -> Recipe:
    request = ImportOptions(
        file=named,
        gpu=options.gpu,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        given={} if options.vocab_size is None else {"vocab_size": str(options.vocab_size)},
        say=lambda line: print(line, file=sys.stderr),
    )
    return imported(request).recipe
