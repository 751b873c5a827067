"""How alike two recipes are, for what the closed form leaves: doublings of sizes and differing settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from trainer.estimate.candidates import Candidates, Floats

# As they act: a layout of stages says how many chunks a rank holds, and what is not written of expert TP is TP
SIZES: tuple[Callable[[Candidates], Floats], ...] = (
    lambda candidates: candidates.tp,
    lambda candidates: candidates.pp,
    lambda candidates: candidates.vpp,
    lambda candidates: candidates.cp,
    lambda candidates: candidates.ep,
    lambda candidates: candidates.etp,
    lambda candidates: candidates.number("micro_batch_size", none=1.0),
    lambda candidates: candidates.number("threads_per_rank", none=1.0),
)
# log likeness that is lost where a setting differs, by what single moves left on simulated clusters (no unseen ones)
SETTINGS = {
    "recompute_granularity": 0.05,
    "recompute_modules": 0.05,
    "moe_token_dispatcher_type": 0.15,
    "moe_flex_dispatcher_backend": 0.25,
    "overlap_moe_expert_parallel_comm": 0.20,
    "cuda_graph_impl": 0.15,
    "cuda_graph_scope": 0.08,
    "delay_wgrad_compute": 0.03,
    "moe_shared_expert_overlap": 0.03,
    "manual_gc": 0.03,
    "moe_grouped_gemm": 0.20,
    "overlap_grad_reduce": 0.05,
    "overlap_param_gather": 0.01,
    "use_distributed_optimizer": 0.05,
    "moe_permute_fusion": 0.02,
    "moe_router_fusion": 0.01,
    "tp_comm_overlap": 0.20,
    "precision": 0.30,
}
WEIGHT = 3.0  # recipes that a prior amplitude counts for
DOUBLINGS = 2.0  # of one size after which likeness has fallen to exp(-1/2)


def features(candidates: Candidates) -> Floats:
    """[N, K]: log2 of sizes, then a number for each value of a setting."""
    sizes = [np.log2(np.maximum(1.0, size(candidates))) for size in SIZES]
    kinds = [candidates.column(name).each(_number) for name in SETTINGS]
    columns = [np.broadcast_to(column, (candidates.count,)) for column in (*sizes, *kinds)]
    return np.stack(columns, axis=1).astype(np.float64)


def likeness(left: Floats, right: Floats) -> Floats:
    """[N, M] between 0 and 1."""
    count = len(SIZES)
    far = ((left[:, None, :count] - right[None, :, :count]) ** 2).sum(axis=-1) / (2 * DOUBLINGS**2)
    differ = left[:, None, count:] != right[None, :, count:]
    lost = np.einsum("nmk,k->nm", differ, np.array(list(SETTINGS.values())))
    result: Floats = np.exp(-far - lost)
    return result


@dataclass(frozen=True, kw_only=True)
class Process:
    """A Gaussian process over the knobs: residuals [M] seen at features [M, K], each with its noise."""

    residual: Floats
    seen: Floats
    noise: Floats
    amplitude: float  # its standard deviation where nothing was seen

    def at(self, where: Floats) -> tuple[Floats, Floats]:
        """(mean, variance) at `features` [N, K], [N] each."""
        return self._told(self._cross(where), 1.0)

    def over(self, there: Floats, here: Floats) -> tuple[Floats, Floats]:
        """The same of how far it lies above where it is `here`, at one row."""
        return self._told(self._cross(there) - self._cross(here), 2 * (1 - likeness(there, here)[:, 0]))

    def _cross(self, where: Floats) -> Floats:
        """Covariances with what was seen, [N, M]."""
        if not len(self.residual):
            return np.zeros((len(where), 0))
        return self.amplitude**2 * likeness(where, self.seen)

    def _told(self, cross: Floats, before: Floats | float) -> tuple[Floats, Floats]:
        """From covariances with what was seen, [N, M], and the variance before, in amplitudes."""
        variance = np.broadcast_to(self.amplitude**2 * before, len(cross))
        if not len(self.residual):
            return np.zeros(len(cross)), variance
        known = cho_factor(covariance(likeness(self.seen, self.seen), self.amplitude, self.noise))
        return cross @ cho_solve(known, self.residual), variance - np.einsum(
            "nm,mn->n", cross, cho_solve(known, cross.T)
        )


def process_of(residual: Floats, seen: Floats, noise: Floats, *, prior: float) -> Process:
    return Process(residual=residual, seen=seen, noise=noise, amplitude=_amplitude(residual, seen, noise, prior=prior))


def covariance(alike: Floats, deviation: float, noise: Floats) -> Floats:
    return deviation**2 * alike + np.diag(noise**2)


def _amplitude(residual: Floats, seen: Floats, noise: Floats, *, prior: float) -> float:
    """Of a process of which these residuals, [M], were seen at these features: `prior`, drawn to what they show as if
    WEIGHT recipes had shown `prior` before."""
    if not len(residual):
        return prior
    root = cholesky(likeness(seen, seen) + np.diag((noise / prior) ** 2), lower=True)
    shown = solve_triangular(root, residual, lower=True)
    return float(np.sqrt((WEIGHT * prior**2 + shown @ shown) / (WEIGHT + len(residual))))


def _number(value: object) -> float:
    """The same for the same value in every process: a hash of text differs from run to run."""
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return float(int.from_bytes(text.encode(), "big") % (2**61 - 1))
