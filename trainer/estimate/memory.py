"""Peak memory of the hottest rank, by part, from the recipe alone.

A closed form with its assumptions written down, not yet fitted to measurements: use `peak_gib` to rank recipes and
`upper_gib` to be safe. Static parts agree with a dry run of Megatron-Core to 0.4 %, activations with the published
DeepSeek-V3 breakdown (see `activations.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.estimate.activations import EXPERT, kept, saved_by_tensor
from trainer.estimate.parameters import LayerParameters, layer_parameters, mtp_parameters
from trainer.recipe.identity import effective
from trainer.recipe.layout import layers_of_ranks, layout_of
from trainer.recipe.predicates import fp4, fp8
from trainer.recipe.schema import Recipe

GIB = 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}
UPPER_IMBALANCE = 1.5  # tokens of the hottest expert rank over the mean, without forced balance
UPPER_FRAGMENTATION = 1.1  # reserved over allocated, with a plain allocator
# Without fused kernels every intermediate is kept and temporaries are many: what a CPU needs over the closed form, and
# once for threads and gloo. Measured on megatron-core 0.16.1's local layers, five bursts in fp32 (1.9 to 2.5), one in
# bf16, whose products are made in fp32.
CPU_UNFUSED = {"fp32": 2.2, "bf16": 3.4}
CPU_RUNTIME_GIB = 0.04
UPPER_CPU_GIB = 0.1  # buffers of the distributed optimizer that are copied
UPPER_RUNTIME_GIB = 1.5  # CUDA context, NCCL and cuBLAS workspaces of a GPU rank
ASSUMPTIONS = (
    "on GPUs fused attention keeps no scores",
    "expert outputs are not kept: probabilities are applied inside the activation",
    "tokens spread evenly over experts; upper_gib allows 1.5 times the mean on the hottest rank",
    "FP8 keeps inputs of linear layers in one byte, and two one-byte copies of every weight",
    "on CPUs activations take 2.2 times the fused form in fp32 and 3.4 times in bf16 (measured)",
    "CUDA context, NCCL buffers and fragmentation only in upper_gib",
)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """GiB of the hottest rank. `by_part` adds up to `peak_gib`; `upper_gib` leaves room for what is not modelled."""

    by_part: dict[str, float]
    upper_gib: float
    hottest: dict[str, int]  # {"pp_rank": n}
    assumptions: tuple[str, ...] = field(default=ASSUMPTIONS)

    @property
    def peak_gib(self) -> float:
        return sum(self.by_part.values())


def estimate_memory(recipe: Recipe) -> MemoryEstimate:
    """The estimate for the pipeline rank that needs most; all its tensor, context and data ranks are alike."""
    ranks = [_of_rank(recipe, pp_rank) for pp_rank in range(layout_of(recipe).pp)]
    return max(ranks, key=lambda estimate: estimate.peak_gib)


def _of_rank(recipe: Recipe, pp_rank: int) -> MemoryEstimate:
    dense, experts = _parameters(recipe, pp_rank)
    static = _static_bytes(recipe, dense, experts)
    activations, routed = _activation_bytes(recipe, pp_rank)
    moving = {"activations": activations, "logits": _logit_bytes(recipe, pp_rank), "workspace": _workspace(recipe)}
    unfused = CPU_UNFUSED.get(recipe.training.precision, 1.0) if recipe.hardware.is_cpu else 1.0
    by_part = {name: size / GIB for name, size in static.items()}
    by_part |= {name: size * unfused / GIB for name, size in moving.items()}
    by_part["workspace"] += CPU_RUNTIME_GIB if recipe.hardware.is_cpu else 0.0
    spread = UPPER_IMBALANCE - 1 if _imbalanced(recipe) else 0.0
    upper = (sum(by_part.values()) + spread * routed * unfused / GIB) * UPPER_FRAGMENTATION
    upper += UPPER_CPU_GIB if recipe.hardware.is_cpu else UPPER_RUNTIME_GIB
    return MemoryEstimate(by_part=by_part, upper_gib=upper, hottest={"pp_rank": pp_rank})


def _imbalanced(recipe: Recipe) -> bool:
    return layout_of(recipe).ep > 1 and not recipe.knob("moe_router_force_load_balancing")


def _parameters(recipe: Recipe, pp_rank: int) -> tuple[float, float]:
    """(parameters sharded over DP·CP, expert parameters sharded over EDP) that this rank holds."""
    model, now = recipe.architecture, layout_of(recipe)
    flags = model.moe_layers
    layers = [layer_parameters(model, is_moe=flags[i]) for chunk in layers_of_ranks(recipe)[pp_rank] for i in chunk]
    first, last = pp_rank == 0, pp_rank == now.pp - 1
    mtp = model.mtp_num_layers or 0
    if last:
        layers += [mtp_parameters(model)] * mtp
    tables = first + (last and (model.untie_embeddings_and_output_weights or now.pp > 1))
    tables += last and mtp > 0 and now.pp > 1  # MTP embeds on the last stage
    embedding = tables * model.vocab_size * model.hidden_size / now.tp
    dense = sum(_dense(layer, now.tp) for layer in layers) + embedding
    return dense, sum(layer.experts for layer in layers) / (now.ep * now.etp)


def _dense(layer: LayerParameters, tp: int) -> float:
    return layer.split / tp + layer.whole


def _static_bytes(recipe: Recipe, dense: float, experts: float) -> dict[str, float]:
    """Weights, gradients, optimizer. Source: 6 + 12/d bytes a parameter with bf16 and fp32 moments (paper §4.1.6)."""
    now = layout_of(recipe)
    sharded = recipe.knob("use_distributed_optimizer") or recipe.knob("use_megatron_fsdp")
    instances = recipe.knob("num_distributed_optimizer_instances")
    shards = {"dense": now.dp * now.cp / instances, "experts": now.edp / instances}
    strategy = recipe.knob("data_parallel_sharding_strategy") if recipe.knob("use_megatron_fsdp") else "optim"
    sizes = {"dense": dense, "experts": experts}
    divided = {kind: size / shards[kind] for kind, size in sizes.items()}

    def held(bytes_each: float, *, split: bool) -> float:
        return bytes_each * sum((divided if split else sizes).values())

    offloaded = recipe.knob("optimizer_offload_fraction") if recipe.knob("optimizer_cpu_offload") else 0.0
    return {
        "weights": held(_weight_bytes(recipe), split=strategy == "optim_grads_params"),
        "gradients": held(_gradient_bytes(recipe), split=strategy in ("optim_grads", "optim_grads_params")),
        "optimizer": held(_optimizer_bytes(recipe), split=sharded) * (1 - offloaded),
    }


def _weight_bytes(recipe: Recipe) -> float:
    if recipe.training.precision == "fp32":
        return 4
    quantized = 2 if fp8(recipe) or fp4(recipe) else 0  # row- and column-wise copies
    return quantized + (0 if quantized and recipe.knob("fp8_param_gather") else 2)


def _gradient_bytes(recipe: Recipe) -> float:
    if recipe.training.precision == "fp32" or effective(recipe, "grad_reduce_in_fp32"):
        return DTYPE_BYTES[effective(recipe, "main_grads_dtype")]
    return 2


def _optimizer_bytes(recipe: Recipe) -> float:
    """Adam's two moments and the fp32 master weights, of which precision-aware Adam keeps the lower half only."""
    moments = sum(DTYPE_BYTES[effective(recipe, name)] for name in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    if recipe.training.precision == "fp32":
        return moments
    aware = recipe.knob("use_precision_aware_optimizer")
    halved = aware and recipe.knob("store_param_remainders") and not recipe.knob("fp8_param_gather")
    return moments + (2 if halved else DTYPE_BYTES[effective(recipe, "main_params_dtype")])


def _tokens(recipe: Recipe) -> float:
    """Tokens of one micro batch on one rank, before sequence parallel divides them."""
    return recipe.training.micro_batch_size * recipe.training.seq_length / layout_of(recipe).cp


def _chunks_in_flight(recipe: Recipe, pp_rank: int) -> int:
    """Model chunks whose activations this rank holds at once in (interleaved) 1F1B."""
    now, batches = layout_of(recipe), recipe.num_microbatches
    if now.vpp == 1:
        return min(now.pp - pp_rank, batches)
    group = recipe.knob("microbatch_group_size_per_vp_stage") or now.pp
    return min((now.pp - pp_rank - 1) * 2 + (now.vpp - 1) * group + 1, batches * now.vpp)


def _activation_bytes(recipe: Recipe, pp_rank: int) -> tuple[float, float]:
    """(all, those of routed tokens) on this rank when most micro batches are in flight."""
    layers, chunks = _kinds_of_layers(recipe, pp_rank), len(layers_of_ranks(recipe)[pp_rank])
    if not layers:
        return 0.0, 0.0
    saved = {is_moe: saved_by_tensor(recipe, is_moe=is_moe) for is_moe in set(layers)}
    left = {is_moe: kept(recipe, tensors) for is_moe, tensors in saved.items()}
    whole, inputs = _full_recompute(recipe, len(layers))
    in_flight = _chunks_in_flight(recipe, pp_rank) / max(1, chunks) * _tokens(recipe)
    offloaded = recipe.knob("cpu_offloading_num_layers") if recipe.knob("cpu_offloading") else 0
    share = whole / len(layers) * max(0.0, 1 - offloaded / len(layers))
    everything = share * sum(sum(left[is_moe].values()) for is_moe in layers)
    routed = share * sum(left[is_moe].get(name, 0.0) for is_moe in layers for name in EXPERT)
    boundaries = inputs * saved[layers[0]]["residual"]
    rebuilt = max(_rebuilt(recipe, saved[is_moe], left[is_moe]) for is_moe in saved) * _tokens(recipe)
    return (everything + boundaries) * in_flight + rebuilt, routed * in_flight


def _kinds_of_layers(recipe: Recipe, pp_rank: int) -> list[bool]:
    """bool[L]: whether each layer of this rank is MoE, MTP layers (of the model's last kind) included."""
    flags = recipe.architecture.moe_layers
    layers = [flags[index] for chunk in layers_of_ranks(recipe)[pp_rank] for index in chunk]
    is_last = pp_rank == layout_of(recipe).pp - 1
    return layers + [flags[-1]] * (recipe.architecture.mtp_num_layers or 0) * is_last


def _full_recompute(recipe: Recipe, layers: int) -> tuple[float, float]:
    """(layers whose activations are kept, layers whose input alone is kept) of one rank's."""
    if recipe.knob("recompute_granularity") != "full":
        return layers, 0
    count = min(recipe.knob("recompute_num_layers") or 1, layers)
    return (layers - count, count) if recipe.knob("recompute_method") == "block" else (0, layers / count)


def _rebuilt(recipe: Recipe, saved: dict[str, float], left: dict[str, float]) -> float:
    """What recompute brings back at a time, bytes a token: the dropped tensors of one layer, or whole layers."""
    granularity = recipe.knob("recompute_granularity")
    if granularity == "full":
        uniform = recipe.knob("recompute_method") != "block"
        return sum(saved.values()) * (recipe.knob("recompute_num_layers") or 1 if uniform else 1)
    return sum(saved.values()) - sum(left.values()) if granularity == "selective" else 0.0


def _logit_bytes(recipe: Recipe, pp_rank: int) -> float:
    """Logits, their softmax and gradient in fp32 on the last stage; a fused loss works in place."""
    model, now = recipe.architecture, layout_of(recipe)
    if pp_rank != now.pp - 1:
        return 0.0
    bytes_each = (4 if recipe.training.precision == "fp32" else 2) + 4
    bytes_each += 0 if recipe.knob("cross_entropy_loss_fusion") else 4
    return bytes_each * _tokens(recipe) * model.vocab_size / now.tp * (1 + (model.mtp_num_layers or 0))


def _workspace(recipe: Recipe) -> float:
    """Gradients of one layer's largest tensors while its backward runs: twice the widest saved one."""
    layers = {is_moe: saved_by_tensor(recipe, is_moe=is_moe) for is_moe in set(recipe.architecture.moe_layers)}
    widest = max(max(tensors.values()) for tensors in layers.values())
    return 2 * widest * _tokens(recipe)
