"""The recipe that the tuner would run before any burst, with or without a probe's rows."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from autotune.probe.study import probe_before
from autotune.tuning import study as studies
from benchmarks.policy.ground import Ground
from benchmarks.policy.study import Study
from benchmarks.policy.tuned import DEFAULT_BUDGET, Contender
from policies.trial import Phase, Proposal, Status, Trial
from policies.tuner.tuner import Tuner


def first_choice(*, probe: bool) -> Contender:
    """Returns a contender that runs nothing: it exports the tuner's first choice."""
    return partial(_chosen, probe=probe)


def _chosen(ground: Ground, budget: int, *, probe: bool) -> Study:
    started, base, seed = time.process_time(), ground.scenario.recipe, ground.scenario.seed
    with TemporaryDirectory(prefix="policy-") as folder:
        study = studies.create(
            base,
            given=b"",
            folder=Path(folder) / "study",
            seed=seed,
            clock=time.time,
            listener=lambda event, history: None,
        )
        probe_before(study, budget=DEFAULT_BUDGET, max_gpu_hours=None, rows=probe)
        rows = study.journal.whole.rows
        study.close()
    as_given = Proposal(recipe=base, parent=None, phase=Phase.FIT, fix="base")
    not_run = Trial(number=0, proposal=as_given, changes={}, bursts=(), outcomes=(), status=Status.OOM)
    found = Tuner(base, seed, probed=rows).propose(not_run, Phase.FIT, ())
    return Study(
        contender="first choice" if probe else "first choice unprobed",
        scenario=ground.scenario.name,
        world=base.world_size,
        start=ground.truth(found.recipe) if found is not None else 0.0,
        paid=(),
        cpu_s=time.process_time() - started,
        seed=seed,
        knobs_changed=len(base.diff(found.recipe)) if found is not None else 0,
    )
