"""The step time of this cluster, learnt: a posterior over the factors, from steps and traced parts.

    log step(x) = log closed form(x; constants moved by θ) + g(x)

θ has the priors of `factors.csv`; g is what the closed form gets wrong whatever its constants, a Gaussian process over
the knobs: recipes that are alike err alike. Every traced part has such a process of its own, so that neither a step nor
a part bends θ further than the form deserves. θ is the maximum a posteriori (SciPy's least squares), its covariance
Laplace's. Shapes: N candidates, F factors, M measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import least_squares

from policies.belief.alike import Process, covariance, features, likeness, process_of
from policies.belief.evidence import PARTS, Evidence, told_together
from policies.belief.factors import Factor, factors, moved
from policies.noise import PINNED
from trainer.estimate.candidates import Candidates, Floats, Integers, tabulate
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.constants import constants as fitted
from trainer.estimate.time.estimate import stages_of
from trainer.estimate.time.layer_time import imbalance
from trainer.estimate.time.stage_table import EXPOSED, StageTable

DEVIATION = 0.10  # of a part's log by the closed form, where every constant is right
DEVIATIONS = {  # of parts that are told worse: what is left over, or what two streams decide
    "waiting": 0.30,
    "host": 0.20,
    "dp_exposed": 0.30,
    "ep_exposed": 0.15,
    "tp_exposed": 0.20,
    "recompute": 0.15,
}
PART_NOISE = 0.3  # of a traced part, in its deviations, at least
WORK, WORK_NOISE = 0.05, 0.03  # of the log of CPU time by the closed form; and measured
OTHER_STAGE = 0.7  # how alike two stages of one pipeline err
FLOOR = 0.02  # of the step: parts below it are told apart no more
ODD = 3.0  # deviations beyond which a figure counts no more than in proportion
# Standard deviation of g before any burst, by whether ranks compute on CPUs. On GPUs recipes within 12 % of the fastest
# were off by 0.033 after three bursts (31 studies of benchmarks.policy), told to be by 0.043 with 0.05
RESIDUAL = {False: 0.04, True: 0.15}
LEAST = 0.003  # deviation of any prediction
FAR = 4.0  # spreads beyond which no factor is moved
STEP = 0.02  # of θ, for derivatives
INTERVAL = 1.645  # deviations of a 90 % interval
TOUCHED = 1e-6  # slope of a figure below which a factor does not act on it
MOST_EVALUATIONS, CLOSE = 60, 3e-3  # of the search for θ; relative fall of its cost at which it ends


@dataclass(frozen=True, kw_only=True)
class Prior:
    """θ of every factor before a study's own bursts, and its standard deviation, [F]."""

    mean: Floats
    spread: Floats


def of_tables() -> Prior:
    spread = np.array([factor.spread for factor in factors()])
    return Prior(mean=np.zeros(len(spread)), spread=spread)


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What the closed form says of N candidates: log seconds a step, [N], their slopes by θ, [N, F], and `features`."""

    mean: Floats
    slopes: Floats
    where: Floats


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """θ of every factor, [F], and what they leave of every measured step."""

    mean: Floats
    covariance: Floats  # [F, F]
    measured: tuple[Evidence, ...]
    residual: Process  # g

    @property
    def theta(self) -> dict[str, float]:
        return _named(factors(), self.mean)

    @property
    def noise(self) -> float:
        """Standard deviation that neighbours of CPU ranks add to the log of two bursts' ratio, beyond what pinned nodes
        show."""
        if not _on_cpu(self.measured):
            return 0.0
        beyond = max(float(np.median(_noise(self.measured))) ** 2 - PINNED**2, 0.0)
        return float(np.sqrt(2 * beyond))

    def means(self, candidates: Candidates) -> Floats:
        """log seconds a step by estimate at the learnt constants, without g: quick, for whole tables."""
        return np.log(stages_of(candidates, constants=moved(self.theta)).step)

    def predict(self, candidates: Candidates) -> tuple[Floats, Floats]:
        """(mean, standard deviation) of log seconds a step, [N] each."""
        found = self.foreseen(candidates)
        left, unsure = self.residual.at(found.where)
        return found.mean + left, self._deviation(found.slopes, unsure)

    def over(self, those: Foreseen, one: Foreseen) -> tuple[Floats, Floats]:
        """The same of log seconds a step over those of `one`, a single row: what is unknown of both alike falls out."""
        left, unsure = self.residual.over(those.where, one.where)
        return those.mean - one.mean + left, self._deviation(those.slopes - one.slopes, unsure)

    def foreseen(self, candidates: Candidates) -> Foreseen:
        """By the closed form at the learnt constants."""

        def told(constants: Constants) -> Floats:
            logs: Floats = np.log(stages_of(candidates, constants=constants).step)
            return logs

        mean = told(moved(self.theta))
        acting = [at for at, factor in enumerate(factors()) if factor.acts_on(candidates.base.hardware)]
        slopes = np.zeros((candidates.count, len(factors())))
        slopes[:, acting] = _slopes(told, [factors()[at] for at in acting], self.theta, mean)
        return Foreseen(mean=mean, slopes=slopes, where=features(candidates))

    def _deviation(self, slopes: Floats, unsure: Floats) -> Floats:
        variance = np.einsum("nf,fg,ng->n", slopes, self.covariance, slopes) + unsure
        deviation: Floats = np.sqrt(np.maximum(variance, LEAST**2))
        return deviation


def _noise(measured: Sequence[Evidence]) -> Floats:
    return np.array([each.deviation for each in measured])


def _on_cpu(measured: Sequence[Evidence]) -> bool:
    return any(each.recipe.hardware.is_cpu for each in measured)


def learnt(evidence: Sequence[Evidence], prior: Prior | None = None) -> Posterior:
    """From all that was measured; the prior (None: the tables') where nothing was. Pure."""
    measured = tuple(each for each in evidence if each.step_s is not None)
    prior = prior or of_tables()
    mean, spreads = prior.mean, np.diag(prior.spread**2)
    residual, seen = np.zeros(0), np.zeros((0, 0))
    if measured:
        form = _Form(measured)
        mean, spreads = _fitted(form, prior)
        learnt_constants = moved(_named(factors(), mean))
        residual = np.log(form.steps) - np.log(stages_of(form.candidates, constants=learnt_constants).step)
        seen = features(form.candidates)
    return Posterior(
        mean=mean,
        covariance=spreads,
        measured=measured,
        residual=process_of(residual, seen, _noise(measured), prior=RESIDUAL[_on_cpu(measured)]),
    )


def _fitted(form: _Form, prior: Prior) -> tuple[Floats, Floats]:
    """The most likely θ and its covariance. Factors that no burst has touched keep what they had."""
    mean, spreads = prior.mean.copy(), np.diag(prior.spread**2)
    before, hardware = _named(factors(), mean), form.candidates.base.hardware
    there = np.array([at for at, factor in enumerate(factors()) if factor.acts_on(hardware)])
    first = _slopes(form.told, [factors()[at] for at in there], before, form.told(moved(before)))
    touched = np.abs(first).max(axis=0) > TOUCHED
    first, places = first[:, touched], there[touched]
    acting = [factors()[place] for place in places]
    start, spread = prior.mean[places], prior.spread[places]

    def near(at: Floats) -> dict[str, float]:
        return _named(acting, np.clip(at, start - FAR * spread, start + FAR * spread))

    def off(at: Floats) -> Floats:
        return np.concatenate([form.told(moved(near(at))) - form.observed, (at - start) / spread])

    def slopes_at(at: Floats) -> Floats:
        slopes = first
        if (at != start).any():
            slopes = _slopes(form.told, acting, near(at), form.told(moved(near(at))))
        return np.concatenate([slopes, np.diag(1 / spread)])

    found = least_squares(
        off,
        start,
        jac=slopes_at,
        x_scale=spread,
        loss=_robust(len(form.observed)),
        max_nfev=MOST_EVALUATIONS,
        ftol=CLOSE,
        xtol=CLOSE,
    )
    mean[places] = np.clip(found.x, start - FAR * spread, start + FAR * spread)
    spreads[np.ix_(places, places)] = np.linalg.inv(found.jac.T @ found.jac)
    return mean, spreads


def _named(acting: Sequence[Factor], at: Floats) -> dict[str, float]:
    return dict(zip((factor.name for factor in acting), at.tolist(), strict=True))


def _robust(count: int) -> Callable[[Floats], Floats]:
    """Huber's loss for the first `count` residuals, squares for the priors behind them: (value, slope, curvature)."""

    def loss(squares: Floats) -> Floats:
        inside = (squares <= ODD**2) | (np.arange(len(squares)) >= count)
        root = np.sqrt(np.maximum(squares, 1e-12))
        value = np.where(inside, squares, 2 * ODD * root - ODD**2)
        slope = np.where(inside, 1.0, ODD / root)
        return np.stack([value, slope, np.where(inside, 0.0, -0.5 * ODD / root**3)])

    return loss


def _slopes(
    told: Callable[[Constants], Floats], acting: Sequence[Factor], theta: Mapping[str, float], now: Floats
) -> Floats:
    """Derivatives of what is told by each factor, [.., F], where all are at `theta`."""
    there = ({**theta, factor.name: theta[factor.name] + STEP} for factor in acting)
    return np.stack([(told(moved(each)) - now) / STEP for each in there], axis=-1)


class _Form:
    """The closed form at the recipes that were measured, and what was measured, each group of figures whitened: alike
    recipes err alike, so that many of them teach little more than one."""

    def __init__(self, measured: Sequence[Evidence]) -> None:
        self.candidates = tabulate([each.recipe for each in measured])
        self.steps = steps = np.array([each.step_s or np.nan for each in measured])
        traced = [(row, rank) for row, each in enumerate(measured) for rank in each.ranks]
        self.rows = np.array([row for row, _ in traced], dtype=np.int64)
        self.stages = np.array([rank.pipeline_rank for _, rank in traced], dtype=np.int64)
        self.floor = FLOOR * steps[self.rows]
        where = features(self.candidates)
        alike = likeness(where, where)
        self.step_root = cholesky(covariance(alike, RESIDUAL[_on_cpu(measured)], _noise(measured)), lower=True)
        other = np.where(self.stages[:, None] == self.stages[None, :], 1.0, OTHER_STAGE)
        together = alike[np.ix_(self.rows, self.rows)] * other
        scatter = np.array([each.scatter for each in measured])[self.rows] / DEVIATION
        self.part_root = cholesky(covariance(together, 1.0, np.hypot(PART_NOISE, scatter)), lower=True)
        self.worked = np.array([row for row, each in enumerate(measured) if each.work_s], dtype=np.int64)
        working = covariance(alike[np.ix_(self.worked, self.worked)], WORK, np.full(len(self.worked), WORK_NOISE))
        self.work_root = cholesky(working, lower=True)
        self.work = np.array([each.work_s for each in measured if each.work_s])
        self.deviations = np.array([DEVIATIONS.get(name, DEVIATION) for name in PARTS])
        parts = {n: np.array([rank.seconds[n] for _, rank in traced]) for n in PARTS}
        self.observed = self._told(steps, parts, self.work)

    def told(self, constants: Constants) -> Floats:
        stages, values = stages_of(self.candidates, constants=constants), {**fitted(), **constants}
        load = np.broadcast_to(imbalance(self.candidates, values), stages.step.shape)
        parts = parts_at(stages, self.rows, self.stages, load=load[self.rows])
        parts = told_together(parts) if self.candidates.base.hardware.is_cpu else parts
        return self._told(stages.step, parts, work_of(stages, moved=values["cpu_moved"])[self.worked])

    def _told(self, steps: Floats, parts: dict[str, Floats], work: Floats) -> Floats:
        whole = solve_triangular(self.step_root, np.log(steps), lower=True)
        working = solve_triangular(self.work_root, np.log(work), lower=True)
        logs = np.stack([np.log(np.maximum(parts[name], 0.0) + self.floor) for name in PARTS], axis=1) / self.deviations
        return np.concatenate([whole, working, solve_triangular(self.part_root, logs, lower=True).reshape(-1)])


def work_of(stages: StageTable, *, moved: float) -> Floats:
    """CPU seconds of a mean rank in a step, [N]: gloo moves and reduces its bytes on threads of the rank, for the share
    `moved` of what that takes."""
    moving = sum((stages.parts[name] for name in EXPOSED), np.zeros(()))
    own = ((stages.busy - moving) / stages.stretch + moved * moving / stages.links_stretch).sum(axis=1)
    once = (stages.optimizer + stages.fixed + stages.gc) / stages.stretch
    seconds: Floats = own / (stages.busy > 0).sum(axis=1) + once + moved * stages.dp_exposed / stages.links_stretch
    return seconds


def parts_at(stages: StageTable, rows: Integers, ranks: Integers, *, load: Floats) -> dict[str, Floats]:
    """Seconds of PARTS on a pipeline rank of some rows: what the trace of a rank with the mean load should show.

    The step is the one of ranks with `load` times the mean; the others wait for them in dispatch and combine.
    """
    at = {name: part[rows, ranks] for name, part in stages.parts.items()}
    waits = at["grouped"] * (1 - 1 / load)
    at |= {"grouped": at["grouped"] - waits, "ep": at["ep"] + waits, "ep_exposed": at["ep_exposed"] + waits}
    work = stages.busy[rows, ranks] + (stages.dp_exposed + stages.optimizer + stages.gc)[rows] + stages.fixed
    return {
        "gemm": at["gemm"] + at["head"],
        **{name: at[name] for name in ("grouped", "attention", "permute", "quantize", "recompute")},
        "memory_bound": at["memory_bound"] + at["loss"],
        "optimizer": stages.optimizer[rows],
        **{name: at[name] for name in ("ep", "ep_exposed", "tp_exposed", "cp_exposed")},
        "dp_exposed": stages.dp_exposed[rows],
        "host": at["host"] + stages.fixed,
        "gc": stages.gc[rows],
        "waiting": np.maximum(stages.step[rows] - work, 0.0),
    }
