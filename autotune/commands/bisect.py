"""`moe-autotune bisect`: finds which differences between two recipes make the second one slower, or make it fail."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer, whole
from autotune.commands.run import MAX_BURSTS, MAX_GPU_HOURS, moment_of
from autotune.exit_codes import DONE, OF_ENDS

if TYPE_CHECKING:
    from autotune.bisect.loop import Problem
    from autotune.session.session import Limits
    from autotune.tuning.journal import Listener
    from autotune.tuning.study import Study

End = Annotated[
    str | Path,
    Parameter(help="A recipe, a study (its best recipe), a trial as STUDY/NUMBER, or a launch script."),
]


Environment = Annotated[
    list[str] | None,
    Parameter(
        negative=(),
        help="NAME=VALUE, or a line that prepares the shell (engine command), of A (--env-a) or B (--env-b) only.",
    ),
]


def bisect(
    a: End,
    b: Annotated[
        str | Path | None,
        Parameter(help="The same: the end that is slower or fails; default A in another environment."),
    ] = None,
    *,
    env_a: Environment = None,
    env_b: Environment = None,
    budget: Annotated[
        int,
        Parameter(converter=whole, validator=Number(gt=0, lte=MAX_BURSTS), help="Maximum number of bursts."),
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
    study: Annotated[
        Path | None, Parameter(help="The study's folder; default studies/NAME-bisect-N with the first free N.")
    ] = None,
    resume: Annotated[bool, Parameter(negative=(), help="Resume an interrupted bisection.")] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="Show the plan and its price; run nothing.")] = False,
    seed: Annotated[
        int | None,
        Parameter(converter=whole, validator=Number(gte=0, lt=2**32), help="Seed of data and weights; default 1234."),
    ] = None,
    gpu: Annotated[str | None, Parameter(help="GPU type, as in import, if the launch script does not say.")] = None,
) -> Answer:
    """Find which differences between two recipes make B slower than A, or make it fail, by short bursts."""
    from autotune.bisect.inputs import Named, ends_named
    from autotune.bisect.loop import Problem
    from autotune.looks.wrapping import plain_console
    from autotune.session.session import Limits
    from autotune.tuning.study import DEFAULT_SEED, free_folder, latest_folder

    first = Named(text=str(a), environment=tuple(env_a or ()))
    second = Named(text=str(a if b is None else b), environment=tuple(env_b or ()))
    problem = Problem(ends_named(first, second, gpu=gpu))
    if dry_run:
        from autotune.bisect.preview import planned, show_plan

        plan = planned(problem, seed=DEFAULT_SEED if seed is None else seed)
        show_plan(plain_console(), plan, problem.ends.a.cluster.gpu_name)
        return Answer(document=plan)
    name = f"{problem.ends.a.name}-bisect"
    folder = study or (latest_folder(name) if resume else free_folder(name))
    limits = Limits(budget=budget, max_gpu_hours=max_gpu_hours, until=moment_of(until))
    return _bisected(problem, f"{first.text} {second.text}", folder, limits, seed, resume)


def _bisected(problem: Problem, given: str, folder: Path, limits: Limits, seed: int | None, resume: bool) -> Answer:
    import msgspec

    from autotune.bisect.loop import BisectLoop
    from autotune.bisect.report import JSON, show_bisection, write_bisection
    from autotune.check.legal import refuse_illegal, refuse_unable
    from autotune.looks.wrapping import lasting_console
    from autotune.session.session import Session, Work, bench_of
    from autotune.tuning.journal import events_of
    from autotune.tuning.live import view_for
    from trainer.errors import refused
    from trainer.launchers.slurm.study_job import is_wanted

    a = problem.ends.a
    refuse_illegal(a, where=given)
    refuse_unable(a)
    if is_wanted(a):
        raise refused(given, "bisect submits no job of its own", "start it inside an allocation (salloc, sbatch)")
    console = lasting_console()
    session = Session(
        given=given,
        folder=folder,
        limits=limits,
        view=view_for(console, folder=folder),
        console=console,
        notify=a.tune.notify,
        work=Work(
            loop=lambda study, engine, limits: BisectLoop(problem=problem, bench=bench_of(study, engine, limits)),
            write_report=write_bisection,
            summary=show_bisection,
            write_running=None,
        ),
    )
    ended = session.run(partial(_opened, problem, folder, seed, resume), events_of(folder))
    document = msgspec.Raw((folder / JSON).read_bytes().strip())
    return Answer(code=OF_ENDS.get(ended.status, DONE), document=document)


def _opened(problem: Problem, folder: Path, seed: int | None, resume: bool, listener: Listener) -> Study:
    from autotune.tuning import study

    a, b = problem.ends.a, problem.ends.b
    if resume:
        return study.resume(a, folder=folder, seed=seed, clock=time.time, listener=listener, other=b)
    return study.create(
        a,
        given=a.to_yaml().encode(),
        folder=folder,
        seed=study.DEFAULT_SEED if seed is None else seed,
        clock=time.time,
        listener=listener,
        other=b,
    )
