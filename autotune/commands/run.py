"""`moe-autotune run`: the tuning loop on one recipe, from study folder to report."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import DONE, INTERRUPTED, NO_RECIPE, Answer, RecipeName

if TYPE_CHECKING:
    from autotune.tuning.events import Ended
    from autotune.tuning.journal import Listener
    from autotune.tuning.live import View
    from autotune.tuning.study import Study
    from trainer.engines import Engine
    from trainer.recipe import Recipe

CODES = {"interrupted": INTERRUPTED, "infeasible": NO_RECIPE}  # of a study's end; any other is DONE
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    recipe: RecipeName,
    *,
    budget: Annotated[int, Parameter(validator=Number(gt=0), help="Bursts to spend, repeats included.")] = 20,
    max_gpu_hours: Annotated[
        float | None, Parameter(validator=Number(gt=0), help="GPU-hours that all bursts together may cost.")
    ] = None,
    until: Annotated[str | None, Parameter(help="HH:MM by which every burst has to end: 07:00.")] = None,
    learn_from: Annotated[
        list[Path] | None,
        Parameter(negative=(), help="Studies on GPUs of the same type, whose lessons are where this one starts."),
    ] = None,
    study: Annotated[
        Path | None, Parameter(help="The study's folder; else studies/NAME-N, the first N that is free.")
    ] = None,
    resume: Annotated[bool, Parameter(negative=(), help="Go on with a study that was interrupted.")] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="Show what would be tried first; run nothing.")] = False,
    seed: Annotated[int | None, Parameter(help="Of data, weights and search; else 1234.")] = None,
) -> Answer:
    """Tune a recipe: short bursts, a diagnosis of each, the fix that matches, until nothing more is
    gained."""
    from trainer.recipe import load_recipe

    base = load_recipe(recipe)
    if dry_run:
        from autotune.tuning.preview import preview

        return Answer(document=preview(base, seed=seed, budget=budget))
    opener = _resumed if resume else partial(_begun, learn_from or [])
    if resume and learn_from:
        _refuse_lessons()
    limits = Limits(budget=budget, max_gpu_hours=max_gpu_hours, until=_moment(until))
    return _tune(base, recipe, limits, partial(opener, base, recipe, study, seed))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may spend: bursts, GPU-hours, and until when (seconds since the epoch)."""

    budget: int
    max_gpu_hours: float | None
    until: float | None


def _moment(text: str | None) -> float | None:
    """The next time the clock shows HH:MM, in seconds since the epoch."""
    from trainer.errors import BadInputError, Problem

    if text is None:
        return None
    try:
        wanted = datetime.strptime(text, "%H:%M").time()
    except ValueError:
        problem = Problem(where="--until", what=f"{text!r} is no time of the day", hint="write HH:MM, as in 07:00")
        raise BadInputError(problem) from None
    now = datetime.now()
    moment = datetime.combine(now.date(), wanted)
    return (moment if moment > now else moment + timedelta(days=1)).timestamp()


def _tune(base: Recipe, given: str, limits: Limits, open_study: Callable[[Listener], Study]) -> Answer:
    from rich.console import Console

    from autotune.check.legal import refuse_illegal, refuse_without_gpus, refuse_without_nodes
    from autotune.report import write_report
    from autotune.tuning.live import summary, view_for

    refuse_illegal(base, where=given)
    refuse_without_gpus(base)
    refuse_without_nodes(base)
    console = Console()
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    view = view_for(console, budget=limits.budget)
    study = open_study(view.show)
    with closing(study):
        say(f"study {study.folder}")
        if study.journal.torn_bytes:
            say(f"the journal ended in a torn line of {study.journal.torn_bytes} bytes: cut off")
        ended = _loop(study, limits, view)
        page = write_report(study.folder)
    summary(study.journal.history, console)
    say(f"report: {page}")
    if ended.status == "interrupted":
        say(f"interrupted; go on with: moe-autotune run {given} --study {study.folder} --resume")
    return Answer(code=CODES.get(ended.status, DONE), document=_report_document(study.folder))


def _refuse_lessons() -> None:
    from trainer.errors import BadInputError, Problem

    raise BadInputError(
        Problem(
            where="--learn-from",
            what="a study that is resumed keeps the lessons it was begun with",
            hint="leave --learn-from out, or begin a new study",
        )
    )


def _begun(
    learn_from: list[Path], base: Recipe, given: str, folder: Path | None, seed: int | None, listener: Listener
) -> Study:
    from autotune.tuning import study
    from autotune.tuning.lessons import lessons_for

    path = Path(given)
    return study.begin(
        base,
        lessons=lessons_for(base, learn_from),
        given=path.read_bytes() if path.is_file() else base.to_yaml().encode(),
        folder=folder or study.free_folder(base.name),
        seed=study.DEFAULT_SEED if seed is None else seed,
        clock=time.time,
        listener=listener,
    )


def _resumed(base: Recipe, given: str, folder: Path | None, seed: int | None, listener: Listener) -> Study:
    from autotune.tuning import study

    found = folder or study.latest_folder(base.name)
    return study.resume(base, folder=found, seed=seed, clock=time.time, listener=listener)


def _loop(study: Study, limits: Limits, view: View) -> Ended:
    """Runs the loop; Ctrl-C and TERM end it with the engine closed and the journal saying so."""
    from analyzers import analyze
    from autotune.tuning.bench import Bench
    from autotune.tuning.events import Ended
    from autotune.tuning.loop import Loop
    from policies.advisers import policy_for
    from trainer.legality import findings_of

    with _terminated_as_interrupt(), closing(_engine(study)) as engine:
        bench = Bench(
            journal=study.journal,
            engine=engine,
            bursts=study.bursts,
            budget=limits.budget,
            max_gpu_hours=limits.max_gpu_hours,
            until=limits.until,
            seed=study.seed,
            check=findings_of,
            analyze=analyze,
            clock=time.time,
        )
        policy = policy_for(study.recipe, study.seed, study.journal.history.lessons)
        loop = Loop(base=study.recipe, policy=policy, bench=bench, patience=study.recipe.tune.patience)
        try:
            with view.live():
                return loop.run()
        except KeyboardInterrupt:
            for number in ENDING:  # ending takes a moment, and a second Ctrl-C must not tear it
                signal.signal(number, signal.SIG_IGN)
            return study.journal.append(Ended(status="interrupted", because="ended by a signal"))


def _engine(study: Study) -> Engine:
    from trainer.engines import open_engine
    from trainer.errors import ToolError

    name = study.recipe.burst.engine
    try:
        return open_engine(name, study.folder / "engine")
    except ImportError as error:
        raise ToolError(
            f"engine {name!r} cannot be loaded: {error}", hint="`moe-autotune doctor` says what is missing"
        ) from error


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """Inside, being told to end (or losing the terminal) raises KeyboardInterrupt as Ctrl-C does."""
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report_document(folder: Path) -> object:
    import msgspec

    return msgspec.Raw((folder / "report.json").read_bytes().strip())
