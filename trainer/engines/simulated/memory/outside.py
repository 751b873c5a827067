"""Memory in addition to the tensors of a step: workspaces inside the allocator, and memory outside it.

DeepEP's buffers follow its size hints (`Config::get_nvl_buffer_size_hint`, `get_rdma_buffer_size_hint`: channels are
half of its SMs); HybridEP's have room for the most tokens that all ranks of the group could send.
"""

from __future__ import annotations

from trainer.engines.simulated.memory.constants import constant
from trainer.engines.simulated.memory.sizes import Sizes
from trainer.recipe.layout import layout_of
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

GIB, MIB = 2.0**30, 2.0**20


def workspace_bytes(sizes: Sizes, *, has_head: bool) -> float:
    """Returns the bytes of GEMM workspaces and shared buffers, which stay in torch's allocator for the life of the
    process; on CPUs those of the runtime."""
    recipe, model = sizes.recipe, sizes.model
    if recipe.hardware.is_cpu:
        return constant("cpu_runtime") * GIB
    streams = 0.0 if sizes.local and not model.num_moe_experts else 1.0
    if not sizes.local:
        streams += constant("grouped_gemm_streams") * bool(recipe.knob("moe_grouped_gemm"))
        streams += constant("userbuffer_streams") * bool(recipe.knob("tp_comm_overlap"))
    products = (streams * constant("gemm_workspace") + constant("blas_workspace")) * MIB
    return products + _scores(sizes) + _gathers(sizes, has_head=has_head)


def _scores(sizes: Sizes) -> float:
    """Returns the bytes of the persistent buffer into which local attention multiplies."""
    if not sizes.local:
        return 0.0
    heads = sizes.model.num_attention_heads / sizes.tp
    return heads * sizes.recipe.training.seq_length * sizes.tokens * sizes.wide


def _gathers(sizes: Sizes, *, has_head: bool) -> float:
    """Returns the bytes of Megatron-Core's global buffer, into which the head and the all-gather dispatcher gather."""
    layout = layout_of(sizes.recipe)
    dispatches = sizes.recipe.knob("moe_token_dispatcher_type") == "allgather" and sizes.model.num_moe_experts
    group = layout.ep * layout.etp
    return max(sizes.gathered * has_head, sizes.hidden * group if dispatches and group > 1 else 0.0)


def outside_gib(recipe: Recipe, sizes: Sizes, machine: Machine) -> float:
    """Returns the memory outside the allocator, GiB: CUDA context, NCCL, the dispatcher's buffers and user buffers."""
    if recipe.hardware.is_cpu:
        return machine.memory.outside_gib
    plain = recipe.knob("NCCL_NVLS_ENABLE") == 0
    nccl = _communicators(recipe) * constant("communicator_plain" if plain else "communicator")
    buffers = _dispatcher_bytes(recipe, sizes) + _userbuffer_bytes(recipe, sizes)
    return machine.memory.outside_gib + constant("cuda_context") + nccl + buffers / GIB


def _communicators(recipe: Recipe) -> int:
    """Returns the number of process groups with more than one rank that a rank is in; the world is always one."""
    layout = layout_of(recipe)
    expert = (layout.ep * layout.etp, layout.edp) if recipe.architecture.num_moe_experts else (1, 1)
    return 1 + [size > 1 for size in (layout.tp, layout.cp, layout.pp, layout.dp * layout.cp, *expert)].count(True)


def _userbuffer_bytes(recipe: Recipe, sizes: Sizes) -> float:
    overlapped = bool(recipe.knob("tp_comm_overlap")) and sizes.tp > 1
    return overlapped * constant("userbuffers") * sizes.tokens * sizes.model.hidden_size * sizes.wide


def _dispatcher_bytes(recipe: Recipe, sizes: Sizes) -> float:
    layout = layout_of(recipe)
    group = layout.ep * layout.etp
    if recipe.knob("moe_token_dispatcher_type") != "flex" or group == 1 or not recipe.architecture.num_moe_experts:
        return 0.0
    width = (recipe.architecture.moe_latent_size or recipe.architecture.hidden_size) * sizes.wide
    if recipe.knob("moe_flex_dispatcher_backend") != "deepep":
        return constant("hybridep_buffers") * sizes.sequence_parallel_tokens * group * width
    channels = float(recipe.knob("moe_deepep_num_sms")) / 2
    domain = min(group, recipe.hardware.nvlink_domain_gpus, 8)
    nodes = group / domain
    inside = channels * domain * constant("deepep_nvlink_tokens") * width
    between = channels * nodes * constant("deepep_network_tokens") * width * 2 if nodes > 1 else 0.0
    return inside + between
