"""Bytes that stay between steps: weights, gradients, master weights and optimizer state, by pipeline rank.

Shapes: N rows, P pipeline ranks. Source: 6 + 12/d bytes per parameter in bf16 with fp32 moments (arXiv 2603.07685
§4.1.6) and what Megatron-Core's DistributedDataParallel, DistributedOptimizer and Megatron-FSDP allocate.
"""

from __future__ import annotations

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.held import HeldParameters

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "uint8": 1.0}
BF16_BYTES = 2.0
QUANTIZED_BYTES = 1.0  # bytes per weight of each quantized copy
MAX_COPIES = 2.0  # most quantized copies of a weight: by row and by column


def state_bytes(candidates: Candidates, held: HeldParameters) -> dict[str, Floats]:
    """Returns the bytes by part, each [N, P]."""
    fsdp, sharded = candidates.on("use_megatron_fsdp"), shards_optimizer(candidates)
    strategy = candidates.column("data_parallel_sharding_strategy")
    splits_gradients = fsdp & strategy.each(lambda value: value in ("optim_grads", "optim_grads_params"))
    splits_weights = fsdp & strategy.each(lambda value: value == "optim_grads_params")
    shared = shares_of(candidates, held)
    on_host = np.where(candidates.on("optimizer_cpu_offload"), candidates.number("optimizer_offload_fraction"), 0.0)
    here = np.where(splits_weights[..., None], shared / np.maximum(held.dense + held.experts, 1.0), 1.0)
    state = {
        "weights": _held(held, weight_bytes(candidates), splits_weights, shared)
        + here * held.linear * (quantized_weights(candidates) - replaced_bytes(candidates))[..., None]
        + here * held.narrow_head * quantized_weights(candidates)[..., None],
        "gradients": _held(held, gradient_bytes(candidates), splits_gradients, shared),
        "master_weights": _held(held, master_bytes(candidates), sharded, shared),
        "optimizer": _held(held, moment_bytes(candidates), sharded, shared),
    }
    return {
        # Megatron's hybrid optimizer copies master weights to the host and keeps its own
        name: size * (1 - on_host)[..., None] if name == "optimizer" else size
        for name, size in state.items()
    }


def shares_of(candidates: Candidates, held: HeldParameters) -> Floats:
    """Returns the parameters in one optimizer shard, [N, P]: dense ones over DP·CP, experts over EDP, each within an
    optimizer instance."""
    instances = candidates.number("num_distributed_optimizer_instances", none=1.0)
    over_dense = candidates.dp * candidates.cp / instances
    over_experts = np.maximum(1.0, candidates.edp / instances)
    return held.dense / over_dense[..., None] + held.experts / over_experts[..., None]


def shards_optimizer(candidates: Candidates) -> Flags:
    return candidates.on("use_distributed_optimizer") | candidates.on("use_megatron_fsdp")


def _held(held: HeldParameters, bytes_each: Floats, split: Flags, shared: Floats) -> Floats:
    bytes_of_all: Floats = bytes_each[..., None] * np.where(split[..., None], shared, held.dense + held.experts)
    return bytes_of_all


def quantized_weights(candidates: Candidates) -> Floats:
    """Returns the bytes per linear weight of its quantized copies, row- and column-wise.

    With one scale per tensor Blackwell multiplies either way from a single copy (memory at rest in golden_runs.csv is
    lower there by one copy). If the GPU's number of copies is not known, the larger one.
    """
    per_tensor = candidates.among("precision", "fp8_current", "fp8_delayed")
    copies = np.where(per_tensor, float(candidates.base.hardware.fp8_copies or MAX_COPIES), MAX_COPIES)
    return copies * QUANTIZED_BYTES * is_fp8(candidates) + 2.0 * 0.5 * candidates.among("precision", "nvfp4")


def is_fp8(candidates: Candidates) -> Flags:
    return candidates.where("precision", lambda value: str(value).startswith(("fp8", "mxfp8")))


def quantizes(candidates: Candidates) -> Flags:
    return is_fp8(candidates) | candidates.among("precision", "nvfp4")


def weight_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes per parameter of the copy that training computes with or quantizes from."""
    return np.where(candidates.among("precision", "fp32"), 4.0, BF16_BYTES)


def replaced_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes per linear weight of the 16-bit copy, where quantized primary weights replace it; else 0.

    Only Transformer Engine's linear layers are made under its `fp8_model_init`; embedding, output projection, norms and
    router keep their 16-bit weights.
    """
    return np.where(quantizes(candidates) & candidates.on("fp8_param_gather"), BF16_BYTES, 0.0)


def gathered_bytes(candidates: Candidates, held: HeldParameters) -> tuple[Floats, Floats]:
    """Returns the bytes of all parameters of a rank as its optimizer shards gather them: dense, experts; [N, P].

    Quantized primary weights travel as one copy; MXFP8's in 16 bits, of which both copies are made afterwards
    (Megatron-Core's param_and_grad_buffer.py).
    """
    narrow = candidates.on("fp8_param_gather") & is_fp8(candidates) & ~candidates.among("precision", "mxfp8")
    saved = np.where(narrow, BF16_BYTES - QUANTIZED_BYTES, 0.0)[..., None]
    each = weight_bytes(candidates)[..., None]
    return each * held.dense - saved * (held.linear - held.experts), (each - saved) * held.experts


def gradient_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes per parameter of the gradient accumulation buffer: `main_grads_dtype` (fp32 without the
    precision-aware optimizer) unless reduced in bf16."""
    fp32 = candidates.among("precision", "fp32")
    written = candidates.column("grad_reduce_in_fp32").each(lambda value: value is None or bool(value))
    lower = acting_dtype(candidates, "main_grads_dtype")
    return np.where(fp32 | written, lower, 2.0)


def step_bytes(candidates: Candidates, held: HeldParameters) -> Floats:
    """Returns the bytes that the optimizer step adds, [N, P]: a gradient copy where the buffer has another dtype."""
    own, buffer = acting_dtype(candidates, "main_grads_dtype"), gradient_bytes(candidates)
    copied = np.where(own == buffer, 0.0, own) * ~candidates.among("precision", "fp32")
    return _held(held, copied, shards_optimizer(candidates), shares_of(candidates, held))


def master_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes per parameter of master weights, 0 if training is in fp32; with `store_param_remainders`,
    precision-aware Adam keeps only the half that bf16 weights do not hold."""
    aware = candidates.on("use_precision_aware_optimizer")
    halved = aware & candidates.on("store_param_remainders") & ~candidates.on("fp8_param_gather")
    master = np.where(halved, 2.0, acting_dtype(candidates, "main_params_dtype"))
    return np.where(candidates.among("precision", "fp32"), 0.0, master)


def moment_bytes(candidates: Candidates) -> Floats:
    """Returns the bytes per parameter of Adam's two moments."""
    return acting_dtype(candidates, "exp_avg_dtype") + acting_dtype(candidates, "exp_avg_sq_dtype")


def acting_dtype(candidates: Candidates, name: str) -> Floats:
    """Returns the bytes of an optimizer dtype; those of fp32 without the precision-aware optimizer."""
    written = candidates.column(name).each(lambda value: DTYPE_BYTES[value])
    return np.where(candidates.on("use_precision_aware_optimizer"), written, 4.0)
