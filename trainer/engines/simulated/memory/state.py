"""Memory that a rank holds between steps, in bytes: weights, gradient buffers, master weights, Adam's moments.

As DistributedDataParallel, DistributedOptimizer, the hybrid CPU optimizer and Megatron-FSDP of Megatron-Core 0.16.1
allocate it, without the padding of buckets. Weights, gradients and master weights exist before the first step; moments,
and master weights of the precision-aware optimizer, appear in its optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.engines.simulated.memory.sizes import FP32
from trainer.model.layer import norm_parameters
from trainer.model.parameters import kind_parameters, mtp_parameters, position_parameters, table_parameters
from trainer.recipe.identity import effective
from trainer.recipe.layout import layers_of_ranks, layout_of, mtp_layers_of_ranks
from trainer.recipe.schema import Recipe

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "uint8": 1.0}


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """The parameters of a rank.

    `dense` are the same on all DP·CP ranks, `experts` on all expert-data-parallel ranks; `quantized_…` are the weights
    of both that FP8 or FP4 GEMMs read. `tables`: the embeddings and heads among the dense ones.
    """

    dense: float
    experts: float
    quantized_dense: float = 0.0
    quantized_experts: float = 0.0
    quantized_head: float = 0.0  # head whose 16-bit weights stay in any case
    tables: float = 0.0
    layers: int = 1

    @property
    def all(self) -> float:
        return self.dense + self.experts


@dataclass(frozen=True, kw_only=True)
class State:
    """The bytes of a rank's state.

    `weights`, `gradients` and `masters` exist from the start, `moments` (with late master weights) from the first
    optimizer step on. `units`: weights and gradients that FSDP holds unsharded. `step`: additional bytes during an
    optimizer step.
    """

    weights: float
    gradients: float
    masters: float
    moments: float
    units: float
    step: float

    @property
    def built(self) -> float:
        return self.weights + self.gradients + self.masters

    @property
    def all(self) -> float:
        return self.built + self.moments


def state_of_ranks(recipe: Recipe) -> tuple[State, ...]:
    """Returns the state by pipeline rank."""
    return tuple(_state(recipe, held) for held in held_by_ranks(recipe))


def held_by_ranks(recipe: Recipe) -> list[RankParameters]:
    model, layout = recipe.architecture, layout_of(recipe)
    pattern, mtp = model.layer_kinds, mtp_layers_of_ranks(recipe)
    kinds = {kind: kind_parameters(model, kind) for kind in set(pattern)}
    predicting = mtp_parameters(model)
    wide = wide_layers(recipe)
    found = []
    for rank, chunks in enumerate(layers_of_ranks(recipe)):
        numbers = [number for chunk in chunks for number in chunk]
        layers = [(kinds[pattern[number]], number not in wide) for number in numbers]
        layers += [(predicting, quantizes(recipe))] * min(mtp[rank], model.most_mtp_layers)
        tables = _tables(recipe, rank, mtp[rank])
        norms = norm_parameters(model, model.hidden_size) * (rank == layout.pp - 1)
        positions = position_parameters(model, recipe.training.seq_length) * (rank == 0 or mtp[rank] > 0)
        found.append(
            RankParameters(
                dense=sum(each.dense_of_rank(layout.tp) for each, _ in layers) + tables + norms + positions,
                experts=sum(each.experts_of_rank(layout.ep, layout.etp) for each, _ in layers),
                quantized_dense=sum(each.split / layout.tp for each, narrow in layers if narrow),
                quantized_experts=sum(each.experts_of_rank(layout.ep, layout.etp) for each, narrow in layers if narrow),
                quantized_head=_quantized_head(recipe, rank),
                tables=tables,
                layers=max(1, len(layers)),
            )
        )
    return found


def wide_layers(recipe: Recipe) -> frozenset[int]:
    """Returns the decoder layers that are not computed in FP8 or FP4."""
    count = recipe.architecture.num_layers
    if not quantizes(recipe):
        return frozenset(range(count))
    if not recipe.knob("first_last_layers_bf16"):
        return frozenset()
    first, last = recipe.knob("num_layers_at_start_in_bf16"), recipe.knob("num_layers_at_end_in_bf16")
    return frozenset(range(first)) | frozenset(range(count - last, count))


def quantizes(recipe: Recipe) -> bool:
    return recipe.training.precision.startswith(("fp8", "mxfp8", "nvfp4"))


def _tables(recipe: Recipe, rank: int, mtp: int) -> float:
    """Returns the parameters of embeddings and heads: an embedding on the first rank, a head on the last (one table if
    tied there), and one for MTP to embed with."""
    model, layout = recipe.architecture, layout_of(recipe)
    first, last = rank == 0, rank == layout.pp - 1
    tied = first and last and not model.untie_embeddings_and_output_weights
    count = first + (last and not tied) + (mtp > 0 and not first)
    return float(count * table_parameters(model, layout.tp))


def _quantized_head(recipe: Recipe, rank: int) -> float:
    layout = layout_of(recipe)
    narrow = rank == layout.pp - 1 and effective(recipe, "fp8_output_proj")
    return float(table_parameters(recipe.architecture, layout.tp)) if narrow else 0.0


def _state(recipe: Recipe, held: RankParameters) -> State:
    shard = _shard(recipe, held)
    fsdp, strategy = bool(recipe.knob("use_megatron_fsdp")), recipe.knob("data_parallel_sharding_strategy")
    splits_weights = fsdp and strategy == "optim_grads_params"
    splits_gradients = splits_weights or (fsdp and strategy == "optim_grads")
    splits_optimizer = bool(recipe.knob("use_distributed_optimizer")) or (fsdp and strategy != "no_shard")
    optimizer = shard if splits_optimizer else held.all
    master, moments = _master_bytes(recipe), _moment_bytes(recipe)
    late = bool(recipe.knob("use_precision_aware_optimizer"))
    quantized = held.quantized_dense + held.quantized_experts
    if splits_weights:
        quantized *= shard / held.all if held.all else 0.0
    own, buffer = _dtype(recipe, "main_grads_dtype"), gradient_bytes(recipe)
    copied = own if own != buffer and recipe.training.precision != "fp32" else 0.0
    return State(
        weights=(shard if splits_weights else held.all) * weight_bytes(recipe)
        + (quantized + held.quantized_head) * quantized_bytes(recipe)
        - _primary(recipe, quantized),
        gradients=(shard if splits_gradients else held.all) * buffer,
        masters=0.0 if late else optimizer * master,
        # the hybrid optimizer moves moments to the host and keeps master weights on the device
        moments=optimizer * (moments * (1 - _on_host(recipe)) + (master if late else 0.0)),
        units=_units(recipe, held, splits_weights, splits_gradients),
        step=optimizer * copied,
    )


def _shard(recipe: Recipe, held: RankParameters) -> float:
    """Returns the parameters in one rank's optimizer shard: dense ones over DP·CP, experts over EDP, within an
    optimizer instance."""
    layout, instances = layout_of(recipe), recipe.knob("num_distributed_optimizer_instances")
    over_dense = max(1.0, layout.dp * layout.cp / instances)
    over_experts = max(1.0, layout.edp / instances)
    return float(held.dense / over_dense + held.experts / over_experts)


def weight_bytes(recipe: Recipe) -> float:
    return FP32 if recipe.training.precision == "fp32" else 2.0


def _primary(recipe: Recipe, quantized: float) -> float:
    """Returns the bytes of 16-bit weights that quantized primary weights replace.

    MXFP8 parameters are gathered in bf16, through a buffer of their own unless the gradient buffer is reused.
    """
    if not (quantizes(recipe) and recipe.knob("fp8_param_gather")):
        return 0.0
    buffered = recipe.training.precision == "mxfp8" and not recipe.knob("reuse_grad_buf_for_mxfp8_param_ag")
    return 0.0 if buffered else quantized * weight_bytes(recipe)


def quantized_bytes(recipe: Recipe) -> float:
    """Returns the bytes per weight of its quantized copies, row-wise and column-wise; a single copy where Blackwell
    scales whole tensors."""
    precision = recipe.training.precision
    if not quantizes(recipe):
        return 0.0
    if precision == "nvfp4":
        return 2 * (0.5 + 1 / 16)
    if precision == "mxfp8":
        return 2 * (1 + 1 / 32)
    per_tensor = precision in ("fp8_current", "fp8_delayed")
    return float(recipe.hardware.fp8_copies or 2) if per_tensor else 2.0


def gradient_bytes(recipe: Recipe) -> float:
    """Returns the bytes per parameter of the gradient accumulation buffer."""
    written = recipe.knob("grad_reduce_in_fp32")
    if recipe.training.precision == "fp32" or written or written is None:
        return _dtype(recipe, "main_grads_dtype")
    return 2.0


def _master_bytes(recipe: Recipe) -> float:
    """Returns the bytes per parameter of master weights: 0 with fp32 weights; if the precision-aware optimizer stores
    remainders, only what bf16 weights do not hold."""
    if recipe.training.precision == "fp32":
        return 0.0
    aware = recipe.knob("use_precision_aware_optimizer")
    if aware and recipe.knob("store_param_remainders") and not recipe.knob("fp8_param_gather"):
        return 2.0
    return _dtype(recipe, "main_params_dtype")


def _moment_bytes(recipe: Recipe) -> float:
    return _dtype(recipe, "exp_avg_dtype") + _dtype(recipe, "exp_avg_sq_dtype")


def _dtype(recipe: Recipe, name: str) -> float:
    """Returns the bytes of an optimizer dtype, which has an effect with the precision-aware optimizer only."""
    return DTYPE_BYTES[recipe.knob(name)] if recipe.knob("use_precision_aware_optimizer") else FP32


def _on_host(recipe: Recipe) -> float:
    return float(recipe.knob("optimizer_offload_fraction")) if recipe.knob("optimizer_cpu_offload") else 0.0


def _units(recipe: Recipe, held: RankParameters, weights: bool, gradients: bool) -> float:
    """Returns the bytes that FSDP holds unsharded: embeddings and heads during the step, two layers at a time, and a
    layer's gradients until they are reduced (two layers' with the double buffer)."""
    if not gradients:
        return 0.0
    twice = bool(recipe.knob("fsdp_double_buffer"))
    each = (held.all - held.tables) / held.layers
    whole = held.tables * weight_bytes(recipe) + 2 * each * weight_bytes(recipe) if weights else 0.0
    return whole + (2 if twice else 1) * each * gradient_bytes(recipe)
