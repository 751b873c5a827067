"""Parts of a step by the closed form, as traces and CPU clocks show them: what measurements are compared with."""

from __future__ import annotations

import numpy as np

from policies.constants import constant
from trainer.estimate.candidates import Floats, Integers, one
from trainer.estimate.gap.parts import EXPERTS_WAIT
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.constants import constants as fitted
from trainer.estimate.time.estimate import stages_of
from trainer.estimate.time.layer_time import imbalance
from trainer.estimate.time.stage_table import EXPOSED, StageTable
from trainer.recipe import Recipe

PART_DEVIATION = constant("part_deviation")
PART_DEVIATIONS = {  # larger deviations, for parts that are remainders or depend on two streams (judged)
    "waiting": 0.30,
    "host": 0.20,
    "dp_exposed": 0.30,
    "ep_exposed": 0.15,
    "tp_exposed": 0.20,
    "recompute": 0.15,
}


def work_of(stages: StageTable, *, moved: float | Floats) -> Floats:
    """Returns the mean CPU seconds per step of a rank, [N].

    gloo sends and reduces on threads of the rank: `moved` is the share of that time that is CPU time.
    """
    moving = sum((stages.parts[name] for name in EXPOSED), np.zeros(()))
    stretch, links, share = (np.asarray(each)[..., None] for each in (stages.stretch, stages.links_stretch, moved))
    own = ((stages.busy - moving) / stretch + share * moving / links).sum(axis=-1)
    once = (stages.optimizer + stages.fixed + stages.gc) / stages.stretch
    seconds: Floats = own / (stages.busy > 0).sum(axis=-1) + once + moved * stages.dp_exposed / stages.links_stretch
    return seconds


def parts_at(stages: StageTable, rows: Integers, ranks: Integers, *, load: Floats) -> dict[str, Floats]:
    """Returns the seconds of PARTS that the trace of a rank with mean expert load shows, for some rows at some pipeline
    ranks. The step lasts as long as the ranks with `load` times the mean need; the others wait for them in dispatch and
    combine, which hides behind compute as far as these do."""
    at = {name: part[..., rows, ranks] for name, part in stages.parts.items()}
    waits = at["grouped"] * (1 - 1 / load)
    left = np.where(at["ep"] > 0, at["ep_exposed"] / np.maximum(at["ep"], 1e-12), 1.0)
    at |= {"grouped": at["grouped"] - waits, "ep": at["ep"] + waits, "ep_exposed": at["ep_exposed"] + waits * left}
    once = stages.dp_exposed + stages.optimizer + stages.offload_exposed + stages.gc
    work = stages.busy[..., rows, ranks] + once[..., rows] + stages.fixed
    return {
        "gemm": at["gemm"] + at["head"],
        **{name: at[name] for name in ("grouped", "attention", "permute", "quantize", "recompute")},
        "memory_bound": at["memory_bound"] + at["loss"],
        "optimizer": stages.optimizer[..., rows],
        **{name: at[name] for name in ("ep", "ep_exposed", "tp_exposed", "cp_exposed")},
        "dp_exposed": stages.dp_exposed[..., rows],
        "host": at["host"] + stages.offload_exposed[..., rows] + stages.fixed,
        "gc": stages.gc[..., rows],
        "waiting": np.maximum(stages.step[..., rows] - work, 0.0),
    }


def expected_parts(
    recipe: Recipe, pipeline_rank: int, *, release: str | None, constants: Constants
) -> dict[str, Floats]:
    """Returns the seconds of `parts_at` for one recipe on GPUs at one pipeline rank, [K] for K sets of constants.

    Under EXPERTS_WAIT it has the time waiting for the rank with most tokens, which is also part of EP.
    """
    candidates, values = one(recipe), {**fitted(), **constants}
    stages = stages_of(candidates, release=release, constants=constants)
    step = np.atleast_2d(stages.step)
    load = np.broadcast_to(imbalance(candidates, values), step.shape)
    found = parts_at(stages, np.zeros(1, dtype=np.int64), np.array([pipeline_rank]), load=load)
    found[EXPERTS_WAIT] = found["grouped"] * (load - 1)
    return {name: np.broadcast_to(part, (len(step), 1))[:, 0] for name, part in found.items()}
