"""How alike two recipes are, for what the closed form leaves: doublings of sizes and differing settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from trainer.estimate.candidates import Candidates, Floats

SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
    "threads_per_rank",
)
# log likeness that is lost where a setting differs
SETTINGS = {
    "recompute_granularity": 0.15,
    "recompute_modules": 0.10,
    "moe_token_dispatcher_type": 0.15,
    "moe_flex_dispatcher_backend": 0.15,
    "overlap_moe_expert_parallel_comm": 0.20,
    "cuda_graph_impl": 0.15,
    "cuda_graph_scope": 0.08,
    "delay_wgrad_compute": 0.03,
    "moe_shared_expert_overlap": 0.03,
    "manual_gc": 0.03,
    "moe_grouped_gemm": 0.20,
    "overlap_grad_reduce": 0.10,
    "overlap_param_gather": 0.05,
    "use_distributed_optimizer": 0.05,
    "moe_permute_fusion": 0.10,
    "moe_router_fusion": 0.05,
    "tp_comm_overlap": 0.10,
    "precision": 0.30,
}
WEIGHT = 3.0  # recipes that a prior amplitude counts for
DOUBLINGS = 2.0  # of one size after which likeness has fallen to exp(-1/2)


def features(candidates: Candidates) -> Floats:
    """[N, K]: log2 of sizes, then a number for each value of a setting."""
    sizes = [np.log2(np.maximum(1.0, candidates.number(name, none=1.0))) for name in SIZES]
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

    def at(self, candidates: Candidates) -> tuple[Floats, Floats]:
        """(mean, variance), [N] each."""
        if not len(self.residual):
            return np.zeros(candidates.count), np.full(candidates.count, self.amplitude**2)
        known = cho_factor(covariance(likeness(self.seen, self.seen), self.amplitude, self.noise))
        cross = self.amplitude**2 * likeness(features(candidates), self.seen)
        variance = self.amplitude**2 - np.einsum("nm,mn->n", cross, cho_solve(known, cross.T))
        return cross @ cho_solve(known, self.residual), variance


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
