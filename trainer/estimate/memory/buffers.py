"""Memory allocated for the life of the process: workspaces, gathered FSDP weights, memory outside torch's allocator.

Shapes: [N, P], [N, 1] or [] bytes.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.estimate.held import HeldParameters
from trainer.estimate.memory.activations import wide_bytes
from trainer.estimate.memory.constants import constant
from trainer.estimate.memory.state import gradient_bytes

GIB, MIB = 2.0**30, 2.0**20


def buffer_bytes(candidates: Candidates, held: HeldParameters) -> Floats:
    """Returns the bytes of buffers in torch's allocator; on a CPU, those of threads, gloo and a sharded optimizer."""
    if candidates.base.hardware.is_cpu:
        sharded = candidates.on("use_distributed_optimizer") * constant("cpu_sharded")
        held_gib: Floats = np.asarray(constant("cpu_runtime") + sharded, dtype=np.float64)
        return held_gib[..., None] * GIB
    return _workspaces(candidates)[..., None] + _gathered(candidates, held) + _scores(candidates)[..., None]


def _workspaces(candidates: Candidates) -> Floats:
    """Returns the bytes of GEMM workspaces: Transformer Engine's own, one per stream of its grouped GEMMs and of its
    communication overlap, and torch's."""
    grouped = candidates.on("moe_grouped_gemm") * constant("grouped_gemm_streams")
    overlapped = candidates.on("tp_comm_overlap") * constant("userbuffer_streams")
    # routers use Transformer Engine's GEMMs in local layers too
    routers = float(candidates.base.architecture.num_moe_experts is not None)
    streams = np.where(candidates.among("transformer_impl", "local"), routers, 1.0 + grouped + overlapped)
    return (streams * constant("gemm_workspace") + constant("blas_workspace")) * MIB


def _scores(candidates: Candidates) -> Floats:
    """Returns the bytes of the persistent buffer into which local attention multiplies."""
    local = candidates.among("transformer_impl", "local")
    heads = candidates.base.architecture.num_attention_heads / candidates.tp
    return local * heads * candidates.number("seq_length") * candidates.tokens * wide_bytes(candidates)


def _gathered(candidates: Candidates, held: HeldParameters) -> Floats:
    """Returns the bytes that FSDP holds unsharded: embedding and head during the step, two layers at a time, the
    gradients of one."""
    whole = candidates.on("use_megatron_fsdp") & candidates.among(
        "data_parallel_sharding_strategy", "optim_grads_params"
    )
    model, stages = candidates.base.architecture, candidates.stages
    tables = (stages.embeds.astype(float) + stages.heads) * model.vocab_size * model.hidden_size
    tables = tables / candidates.tp[..., None]
    layers = np.maximum(1.0, stages.dense + stages.moe + stages.mtp)
    each = np.maximum(0.0, held.dense + held.experts - tables) / layers
    wide, gradients = wide_bytes(candidates)[..., None], gradient_bytes(candidates)[..., None]
    return whole[..., None] * (tables * wide + each * (2 * wide + gradients))


def outside_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes outside torch's allocator: CUDA context, NCCL, and the buffers of DeepEP (a constant) or of
    HybridEP, which have room for the most tokens that every rank of the group could send. 0 on a CPU."""
    if candidates.base.hardware.is_cpu or not candidates.base.architecture.num_moe_experts:
        return np.full((), constant("runtime") * GIB * (not candidates.base.hardware.is_cpu))
    flex = candidates.among("moe_token_dispatcher_type", "flex") & (candidates.ep > 1)
    hybrid = flex & candidates.among("moe_flex_dispatcher_backend", "hybridep")
    deep = flex & ~hybrid
    hidden = candidates.base.architecture.hidden_size * wide_bytes(candidates)
    tokens = candidates.tokens / np.where(candidates.on("sequence_parallel"), candidates.tp, 1.0)
    received = constant("hybridep_buffers") * tokens * candidates.ep * candidates.etp * hidden
    return hybrid * received + (deep * constant("deepep_buffers") + constant("runtime")) * GIB
