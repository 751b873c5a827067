"""The kernel over recipes (the correlation of two recipes' residuals), and Gaussian processes with it.

The correlation is higher the fewer doublings separate their sizes and the fewer settings differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from policies.constants import constant
from trainer.estimate.candidates import Candidates, Floats

# exponent on the world size, which differs only between a recipe and its proxy
SIZE_SHARE = constant("kernel_size_share")
# Effective sizes: a pipeline layout decides the chunks of a rank, and expert TP that is not set equals TP
SIZES: tuple[Callable[[Candidates], Floats], ...] = (
    lambda candidates: candidates.tp,
    lambda candidates: candidates.pp,
    lambda candidates: candidates.vpp,
    lambda candidates: candidates.cp,
    lambda candidates: candidates.ep,
    lambda candidates: candidates.etp,
    lambda candidates: candidates.number("micro_batch_size", none=1.0),
    lambda candidates: candidates.number("threads_per_rank", none=1.0),
    lambda candidates: np.asarray(float(candidates.base.world_size) ** SIZE_SHARE),
)
# decrease of the log correlation if a setting differs: fitted to the residuals of single moves on the scenarios of
# benchmarks.policy that are not marked unseen
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
AMPLITUDE_PSEUDO_OBSERVATIONS = constant("amplitude_pseudo_observations")
KERNEL_LENGTH_DOUBLINGS = constant("kernel_length_doublings")


def features(candidates: Candidates) -> Floats:
    """Returns the features of N candidates, [N, K]: log2 of each size, then a number for the value of each setting."""
    sizes = [np.log2(np.maximum(1.0, size(candidates))) for size in SIZES]
    kinds = [candidates.column(name).each(_number) for name in SETTINGS]
    columns = [np.broadcast_to(column, (candidates.count,)) for column in (*sizes, *kinds)]
    return np.stack(columns, axis=1).astype(np.float64)


def kernel(left: Floats, right: Floats) -> Floats:
    """Returns the correlation, [N, M] between 0 and 1, of features [N, K] and [M, K]."""
    count = len(SIZES)
    squared = ((left[:, None, :count] - right[None, :, :count]) ** 2).sum(axis=-1)
    differ = left[:, None, count:] != right[None, :, count:]
    lost = np.einsum("nmk,k->nm", differ, np.array(list(SETTINGS.values())))
    result: Floats = np.exp(-squared / (2 * KERNEL_LENGTH_DOUBLINGS**2) - lost)
    return result


@dataclass(frozen=True, kw_only=True)
class GaussianProcess:
    """A Gaussian process with zero prior mean, given residuals [M] observed at features [M, K], each with its noise
    [M]."""

    residual: Floats
    seen: Floats
    noise: Floats
    amplitude: float  # standard deviation far from every observation

    def at(self, where: Floats) -> tuple[Floats, Floats]:
        """Returns (mean, variance) at features [N, K], [N] each."""
        return self._posterior(self._cross(where), 1.0)

    def difference(self, there: Floats, here: Floats) -> tuple[Floats, Floats]:
        """Returns (mean, variance), [N] each, of the process at features [N, K] minus its value at the one row
        `here`."""
        return self._posterior(self._cross(there) - self._cross(here), 2 * (1 - kernel(there, here)[:, 0]))

    def covariance(self, left: Floats, right: Floats) -> Floats:
        """Returns the covariance, [N, M], of the process at features [N, K] with itself at features [M, K]."""
        prior = self.amplitude**2 * kernel(left, right)
        if not len(self.residual):
            return prior
        known = cho_factor(covariance(kernel(self.seen, self.seen), self.amplitude, self.noise))
        explained: Floats = self._cross(left) @ cho_solve(known, self._cross(right).T)
        return prior - explained

    def _cross(self, where: Floats) -> Floats:
        """Returns the covariances with the observations, [N, M]."""
        if not len(self.residual):
            return np.zeros((len(where), 0))
        return self.amplitude**2 * kernel(where, self.seen)

    def _posterior(self, cross: Floats, before: Floats | float) -> tuple[Floats, Floats]:
        """Conditions on the observations. `cross` is [N, M]; `before` the prior variance in squared amplitudes."""
        variance = np.broadcast_to(self.amplitude**2 * before, len(cross))
        if not len(self.residual):
            return np.zeros(len(cross)), variance
        known = cho_factor(covariance(kernel(self.seen, self.seen), self.amplitude, self.noise))
        explained = np.einsum("nm,mn->n", cross, cho_solve(known, cross.T))
        return cross @ cho_solve(known, self.residual), variance - explained


def fit_process(residual: Floats, seen: Floats, noise: Floats, *, prior: float) -> GaussianProcess:
    """Fits a process to residuals [M] at features [M, K] with noise [M].

    `prior` is its amplitude without observations.
    """
    amplitude = _amplitude(residual, seen, noise, prior=prior)
    return GaussianProcess(residual=residual, seen=seen, noise=noise, amplitude=amplitude)


def covariance(correlation: Floats, deviation: float, noise: Floats) -> Floats:
    """Returns deviation² · correlation, [M, M], with the noise [M] on its diagonal."""
    return deviation**2 * correlation + np.diag(noise**2)


def _amplitude(residual: Floats, seen: Floats, noise: Floats, *, prior: float) -> float:
    """Returns the process's amplitude, shrunk toward `prior` by AMPLITUDE_PSEUDO_OBSERVATIONS."""
    if not len(residual):
        return prior
    root = cholesky(kernel(seen, seen) + np.diag((noise / prior) ** 2), lower=True)
    whitened = solve_triangular(root, residual, lower=True)
    weight = AMPLITUDE_PSEUDO_OBSERVATIONS
    return float(np.sqrt((weight * prior**2 + whitened @ whitened) / (weight + len(residual))))


def _number(value: object) -> float:
    """Returns a number for a value, the same in every process of the operating system (Python's hash of text is
    not)."""
    text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
    return float(int.from_bytes(text.encode(), "big") % (2**61 - 1))
