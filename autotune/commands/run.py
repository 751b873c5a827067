"""`moe-autotune run`: tunes one recipe, from study folder to report."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer, Price, RecipeName, whole
from autotune.exit_codes import DONE, OF_ENDS

if TYPE_CHECKING:
    from autotune.session.session import Limits
    from autotune.tuning.journal import Listener
    from autotune.tuning.study import Study
    from trainer.recipe import Recipe

MAX_BURSTS = 100_000
MAX_GPU_HOURS = 1e9


def run(
    recipe: RecipeName,
    *,
    budget: Annotated[
        int,
        Parameter(
            converter=whole, validator=Number(gt=0, lte=MAX_BURSTS), help="Maximum number of bursts, repeats included."
        ),
    ] = 20,
    max_gpu_hours: Annotated[
        float | None,
        Parameter(
            validator=Number(gt=0, lte=MAX_GPU_HOURS), help="Maximum GPU-hours of the probe and all bursts together."
        ),
    ] = None,
    until: Annotated[
        str | None,
        Parameter(help="Start no burst that would end after this time: HH:MM, such as 07:00, or 2026-11-23T07:00."),
    ] = None,
    ablate: Annotated[
        int,
        Parameter(
            converter=whole,
            validator=Number(gte=0, lte=MAX_BURSTS),
            help="Bursts of the budget kept for the end: to take out changes that the gain does not need.",
        ),
    ] = 0,
    learn_from: Annotated[
        list[Path] | None,
        Parameter(
            negative=(), help="Start from what these studies, or machine files of them, learned on the same GPU type."
        ),
    ] = None,
    proxy_nodes: Annotated[
        int | None,
        Parameter(
            converter=whole,
            validator=Number(gt=0, lte=MAX_BURSTS),
            help="Tune by smaller runs on at most this many nodes, then measure the best at full size.",
        ),
    ] = None,
    study: Annotated[
        Path | None, Parameter(help="The study's folder; default studies/NAME-N with the first free N.")
    ] = None,
    resume: Annotated[bool, Parameter(negative=(), help="Resume an interrupted study.")] = False,
    probe: Annotated[
        bool,
        Parameter(
            negative="--no-probe",
            help="Measure the cluster first, for at most a twentieth of the study's cost; done unless --no-probe.",
        ),
    ] = True,
    dry_run: Annotated[bool, Parameter(negative=(), help="Show what would be tried first; run nothing.")] = False,
    seed: Annotated[
        int | None,
        Parameter(
            converter=whole, validator=Number(gte=0, lt=2**32), help="Seed of data, weights and search; default 1234."
        ),
    ] = None,
    gpu_hour_price: Price = None,
    notify: Annotated[
        str | None,
        Parameter(help="Shell command to run when the study ends, for any reason; default the recipe's tune.notify."),
    ] = None,
) -> Answer:
    """Tune a recipe: short bursts, a diagnosis of each, the fix that matches, until nothing more is
    gained."""
    from autotune.session.session import Limits
    from trainer.recipe import load_recipe

    given = str(recipe)
    base = load_recipe(given)
    if proxy_nodes is not None:
        base = base.model_copy(update={"tune": base.tune.model_copy(update={"proxy_nodes": proxy_nodes})})
    if ablate >= budget:
        _refuse_ablation(ablate, budget)
    if dry_run:
        from autotune.tuning.preview import preview

        return Answer(document=preview(base, seed=seed, budget=budget, max_gpu_hours=max_gpu_hours, probe=probe))
    if resume and learn_from:
        _refuse_lessons()
    deadline = moment_of(until)
    if not resume:
        _refuse_past(deadline)
    folder = _folder(base.name, study, resume)
    opener = (
        partial(_resumed, base, folder, seed) if resume else partial(_started, base, folder, seed, given, learn_from)
    )
    limits = Limits(
        budget=budget,
        max_gpu_hours=max_gpu_hours,
        until=deadline,
        ablate=ablate,
        gpu_hour_price=gpu_hour_price,
        probe=probe,
    )
    return _tune(base, given, limits, notify, opener, folder)


def _folder(name: str, study: Path | None, resume: bool) -> Path:
    from autotune.tuning.study import free_folder, latest_folder

    return study or (latest_folder(name) if resume else free_folder(name))


def moment_of(text: str | None) -> float | None:
    """Returns the next time the clock shows HH:MM, or the time given with its date, in seconds since the epoch; None
    for None."""
    from trainer.errors import BadInputError, Problem

    if text is None:
        return None
    try:
        if "T" in text:
            return datetime.fromisoformat(text).timestamp()
        wanted = datetime.strptime(text, "%H:%M").time()
    except ValueError:
        hint = "write HH:MM, as in 07:00, or with its day, as in 2026-11-23T07:00"
        raise BadInputError(Problem(where="--until", what=f"{text!r} is not a time of day", hint=hint)) from None
    now = datetime.now()
    moment = datetime.combine(now.date(), wanted)
    return (moment if moment > now else moment + timedelta(days=1)).timestamp()


def _refuse_past(deadline: float | None) -> None:
    from trainer.errors import BadInputError, Problem

    if deadline is not None and deadline <= time.time():
        said = f"{datetime.fromtimestamp(deadline):%Y-%m-%d %H:%M} is over"
        raise BadInputError(Problem(where="--until", what=said, hint="name a moment to come, or leave it out"))


def _tune(
    base: Recipe, given: str, limits: Limits, command: str | None, opener: Callable[[Listener], Study], folder: Path
) -> Answer:
    from autotune.check.legal import refuse_illegal, refuse_unable
    from autotune.looks.wrapping import lasting_console
    from autotune.session.allocation import InAllocation
    from autotune.session.session import Session
    from autotune.tuning.journal import events_of
    from autotune.tuning.live import view_for
    from trainer.launchers.slurm.study_job import is_wanted

    refuse_illegal(base, where=given)
    refuse_unable(base)
    console = lasting_console()
    if is_wanted(base):
        history = InAllocation(
            recipe=base, given=given, folder=folder, limits=limits, console=console, notify=command
        ).run(opener)
        status = history.ended.status if history.ended else "interrupted"
        return Answer(code=OF_ENDS.get(status, DONE), document=_report(folder))
    session = Session(
        given=given,
        folder=folder,
        limits=limits,
        view=view_for(console, folder=folder),
        console=console,
        notify=command or base.tune.notify,
    )
    ended = session.run(opener, events_of(folder))
    return Answer(code=OF_ENDS.get(ended.status, DONE), document=_report(folder))


def _report(folder: Path) -> object:
    import msgspec

    return msgspec.Raw((folder / "report.json").read_bytes().strip())


def _refuse_lessons() -> None:
    from trainer.errors import BadInputError, Problem

    raise BadInputError(
        Problem(
            where="--learn-from",
            what="a resumed study keeps the lessons it started with",
            hint="leave --learn-from out, or start a new study",
        )
    )


def _refuse_ablation(ablate: int, budget: int) -> None:
    from trainer.errors import BadInputError, Problem

    raise BadInputError(
        Problem(
            where="--ablate",
            what=f"{ablate} of {budget} bursts are kept for the ablation, and none is left for the search",
            hint="name fewer bursts than --budget has; 4 of 20 are enough for most recipes",
        )
    )


def _started(
    base: Recipe, folder: Path, seed: int | None, given: str, learn_from: list[Path] | None, listener: Listener
) -> Study:
    from autotune.tuning import study
    from autotune.tuning.lessons import lessons_for

    path = Path(given)
    return study.create(
        base,
        lessons=lessons_for(base, learn_from or []),
        given=path.read_bytes() if path.is_file() else base.to_yaml().encode(),
        folder=folder,
        seed=study.DEFAULT_SEED if seed is None else seed,
        clock=time.time,
        listener=listener,
    )


def _resumed(base: Recipe, folder: Path, seed: int | None, listener: Listener) -> Study:
    from autotune.tuning import study

    return study.resume(base, folder=folder, seed=seed, clock=time.time, listener=listener)
