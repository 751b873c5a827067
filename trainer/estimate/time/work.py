"""The work of one layer for one micro batch on one rank, in seconds of device time and of host time.

Device work is GEMMs (at a share of the peak), attention (at measured rates), and memory-bound work (bytes over the HBM
rate): norms, residuals, permutation, activations, and in FP8 and FP4 quantization. Host time is the time to launch all
of it. Forward and backward are separate; recompute repeats parts of forward.

Shapes: [N], one value per candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats
from trainer.estimate.memory.state import quantizes
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.quantization import quantized_bytes
from trainer.measured.architectures import known, of_architecture, of_precision
from trainer.measured.software import Release
from trainer.model.flops import mean_attended
from trainer.model.layer import attention_channels, dense_width, expert_input, expert_width, mlp_matrices
from trainer.model.mixers import mixers
from trainer.model.parameters import layer_parameters
from trainer.model.shares import LayerShares, class_shares
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import UNFITTED, Hardware

TERA = 1e12
MULTIPLY_ADD = 2.0  # FLOPs per parameter and token in forward; backward has twice as many
ATTENTION_BACKWARD = 2.5  # ratio of GEMMs: five in backward, two in forward
FORWARD_SHARE = 1 / 3  # share of the forward pass in a layer's launches and GEMMs
LONG_SEQUENCE = (4096.0, 16384.0)  # sequence lengths at which the two attention rates were measured
REFERENCE_HEAD = 128.0  # channels of a head at which the attention rates were measured
PACE_TFLOPS = 1000.0  # rate of the long dense GEMMs for which grouped_half_width is given
FEED_LAUNCHES = 0.15  # launches of a layer without a mixer relative to one with, routing and experts excluded
SCAN_BACKWARD = 2.5  # time of a scan's backward over its forward: it is recomputed, then its gradients
DISPATCH_COLLECTIVES, TP_COLLECTIVES = 5.0, 5.0  # collectives of a layer, forward and backward


@dataclass(frozen=True, kw_only=True)
class Forward:
    """Device seconds of a layer's forward pass, by parts that recompute can repeat, [N] each."""

    gemm: Floats  # attention's projections, dense and shared feed-forward, router
    grouped: Floats  # the experts
    attention: Floats
    attention_backward: Floats
    scan: Floats  # scans of mixers other than attention
    norms: Floats
    activation: Floats  # activation function of the experts, or of a dense feed-forward
    permute: Floats
    quantize: Floats
    up_projection: Floats  # up projections of MLA; part of gemm
    shared: Floats  # shared experts; part of gemm
    feed_forward: Floats  # feed-forward of a dense layer; part of gemm

    @property
    def memory_bound(self) -> Floats:
        return self.norms + self.activation + self.permute + self.quantize

    @property
    def total(self) -> Floats:
        return self.gemm + self.grouped + self.attention + self.scan + self.memory_bound


def gemm_tflops(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the rate that long dense GEMMs sustain in each row's precision, TFLOP/s."""
    hardware = candidates.base.hardware
    rates: Floats = np.zeros(())
    for precision in candidates.column("precision").choices:
        chosen = candidates.among("precision", precision)
        rates = np.where(chosen, precision_tflops(hardware, constants, precision), rates)
    return rates * rank_speed(candidates, constants)


def precision_tflops(hardware: Hardware, constants: Constants, precision: str) -> float | Floats:
    """Returns the sustained rate of long dense GEMMs in one precision, TFLOP/s.

    Variants of Blackwell differ in power, not in silicon, so that the share is of the reference variant's peak.
    """
    if hardware.is_cpu:
        return constants["cpu_tflops"]
    reference = hardware.rated
    share = of_precision(constants, "gemm_efficiency", hardware, precision)
    watts = (hardware.watts or 1.0) / (reference.watts or 1.0)
    return reference.peak_tflops(precision) * share * watts ** constants["power_exponent"]


def rank_speed(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the speed of a CPU rank with its threads relative to one thread, if each thread has a core; lower where
    TP splits its work. 1 on GPUs."""
    if not candidates.base.hardware.is_cpu:
        return np.ones(())
    split = np.where(candidates.tp > 1, constants["cpu_split"], 1.0)
    threads: Floats = candidates.number("threads_per_rank", none=1.0) ** constants["cpu_threads"]
    return threads / split


def forward_of(
    candidates: Candidates, constants: Constants, release: Release, *, is_moe: bool, imbalance: Floats
) -> Forward:
    """Returns the forward pass of one layer for one micro batch; `imbalance` is the hottest expert rank's tokens over
    the mean."""
    model = candidates.base.architecture
    rate, tokens, tp = gemm_tflops(candidates, constants) * TERA, candidates.tokens, candidates.tp
    parts = _parameters(model, is_moe=is_moe)
    attention_gemm = MULTIPLY_ADD * tokens * (parts["split"] / tp + parts["whole"] / tp) / rate
    feed_forward = MULTIPLY_ADD * tokens * parts["dense"] / tp / rate
    shared = MULTIPLY_ADD * tokens * parts["shared"] / tp / rate
    routed = MULTIPLY_ADD * tokens * parts["routed"] / tp * imbalance / (rate * _grouped(candidates, constants))
    memory = _memory_bound(candidates, constants, release, is_moe=is_moe, imbalance=imbalance)
    core, core_backward = _attention(candidates, constants)
    return Forward(
        gemm=attention_gemm + feed_forward + shared,
        grouped=routed,
        attention=core,
        attention_backward=core_backward,
        scan=_scans(candidates, constants, class_shares(model, is_moe=is_moe)),
        up_projection=MULTIPLY_ADD * tokens * parts["up_projection"] / tp / rate,
        shared=shared,
        feed_forward=feed_forward,
        **memory,
    )


@lru_cache(maxsize=8)
def _parameters(model: Architecture, *, is_moe: bool) -> dict[str, float]:
    """Returns the parameters that one token is multiplied with, by the kind of GEMM."""
    layer, shares = layer_parameters(model, is_moe=is_moe), class_shares(model, is_moe=is_moe)
    shared = mlp_matrices(model) * model.hidden_size * (model.moe_shared_expert_intermediate_size or 0) if is_moe else 0
    dense = 0 if is_moe else shares.feed_forward * mlp_matrices(model) * model.hidden_size * dense_width(model)
    query, key, value = attention_channels(model)
    rope = model.num_attention_heads * (model.qk_pos_emb_head_dim or 0)
    up = 0.0
    if model.multi_latent_attention:
        up = (model.q_lora_rank or model.hidden_size) * query + (model.kv_lora_rank or 0) * (key - rope + value)
    routed = float(mlp_matrices(model) * expert_input(model) * expert_width(model) * model.moe_router_topk)
    return {
        "split": float(layer.split - shared - dense),
        "whole": float(layer.whole),
        "dense": float(dense),
        "shared": float(shared),
        "routed": routed if is_moe else 0.0,
        "up_projection": float(up) * shares.attention,
    }


def rows_per_expert(candidates: Candidates) -> Floats:
    """Returns the mean number of tokens per micro batch of each expert on a rank."""
    model = candidates.base.architecture
    held = candidates.ep * candidates.etp / candidates.tp
    return candidates.tokens * model.moe_router_topk * held / (model.num_moe_experts or 1)


def _grouped(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the rate of the experts' GEMMs relative to a long dense GEMM: few rows or narrow experts leave the device
    underused."""
    model = candidates.base.architecture
    if model.num_moe_experts is None:
        return np.ones(())
    width, rows = expert_width(model) / candidates.etp, rows_per_expert(candidates)
    if candidates.base.hardware.is_cpu:  # one GEMM per expert: with few rows, reading the expert's weights dominates
        return rows / (rows + constants["cpu_half_rows"])
    grouped = np.where(candidates.on("moe_grouped_gemm"), 1.0, constants["ungrouped_efficiency"])
    # A GEMM loses a constant time at its start and end, which is more work the higher the rate
    pace = gemm_tflops(candidates, constants) / PACE_TFLOPS
    full = rows / (rows + constants["grouped_half_rows"]) * width / (width + constants["grouped_half_width"] * pace)
    return constants["grouped_efficiency"] * grouped * full


def _attention(candidates: Candidates, constants: Constants) -> tuple[Floats, Floats]:
    """Returns the seconds of fused attention, forward and backward, at the rates measured at 4K and 16K."""
    model, hardware = candidates.base.architecture, candidates.base.hardware
    query, _, value = attention_channels(model)
    width = query + (value if model.multi_latent_attention else query)
    seen = candidates.column("seq_length").each(lambda length: mean_attended(model, int(length)))
    flops = MULTIPLY_ADD * candidates.tokens * seen * width / candidates.tp
    # Exponentials, not GEMMs, bound heads narrower than those that the rates were measured with
    flops = flops * max(1.0, REFERENCE_HEAD * model.num_attention_heads / query)
    if hardware.is_cpu:
        forward = flops / (gemm_tflops(candidates, constants) * TERA)
        return forward, ATTENTION_BACKWARD * forward
    short, long = LONG_SEQUENCE
    place = np.clip(np.log(candidates.number("seq_length") / short) / np.log(long / short), 0.0, 1.0)
    faster = np.where(candidates.on("fp8_dot_product_attention"), constants["attention_fp8_speedup"], 1.0) * TERA
    rates = []
    for way in ("forward", "backward"):
        near, far = (attention_tflops(hardware, constants, f"{way}{end}") for end in ("", "_long"))
        rates.append((near + place * (far - near)) * faster)
    return flops / rates[0], ATTENTION_BACKWARD * flops / rates[1]


def _scans(candidates: Candidates, constants: Constants, shares: LayerShares) -> Floats:
    """Returns the seconds of the kernels between the projections of linear mixers, forward: `scan_time` times the time
    to move their elements through memory at the share of its rate that these kernels reach, but at least the chain of a
    sequence's chunks. Every rank goes through the whole sequence, with fewer heads the more ranks share it, so that the
    chain is as long on any number of ranks. Averaged over the layers of the class."""
    seconds: Floats = np.zeros(())
    if not shares.scans:
        return seconds
    model, hardware = candidates.base.architecture, candidates.base.hardware
    share_of_rate = 1.0 if hardware.is_cpu else of_architecture(constants, "scan_share", hardware)
    rate = memory_rate(candidates, constants) * share_of_rate
    for name, share in shares.scans.items():
        scan = mixers()[name].scan
        assert scan is not None
        work = scan(model)
        elements = candidates.tokens / candidates.tp * work.elements
        moved = constants[f"scan_time.{name}"] * 2.0 * elements / rate
        chunks = candidates.number("seq_length") / work.chunk if work.chunk and not hardware.is_cpu else np.zeros(())
        seconds = seconds + share * np.maximum(moved, chunks * constants["scan_chunk_us"] * 1e-6)
    return seconds


def attention_tflops(hardware: Hardware, constants: Constants, name: str) -> float | Floats:
    """Returns the TFLOP/s that fused attention sustains: measured, else a share of the architecture's peak."""
    if hardware.fitted_as == UNFITTED:
        return of_architecture(constants, "attention_share", hardware, name) * hardware.peak_tflops("bf16")
    return of_architecture(constants, "attention_tflops", hardware, name)


def memory_rate(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the bytes per second of memory-bound kernels."""
    hardware = candidates.base.hardware
    if hardware.is_cpu:
        return constants["cpu_tb_s"] * TERA * rank_speed(candidates, constants)
    share = of_architecture(constants, "memory_efficiency", hardware)
    return np.asarray(known(hardware, hardware.memory_tb_s, "hbm_tb_s") * TERA * share)


def _memory_bound(
    candidates: Candidates, constants: Constants, release: Release, *, is_moe: bool, imbalance: Floats
) -> dict[str, Floats]:
    """Returns the seconds of memory-bound work: elements that pass through HBM besides GEMMs, times their bytes, over
    the rate.

    Counted on Megatron-Core's forward pass with fused norms, rotary embedding and SwiGLU: two norms (read, write), two
    residual additions (two reads, a write), rotary on queries and keys, the activation (read its input, write its
    output), permutation and its inverse. Quantization reads and writes what its recipe does.
    """
    model = candidates.base.architecture
    query, key, value = attention_channels(model)
    gates = 2 if model.gated_linear_unit else 1
    each = candidates.tokens / candidates.tp * 2.0  # bytes of one element of each of the rank's tokens
    topk = model.moe_router_topk * imbalance if is_moe else np.zeros(())
    width = expert_width(model) if is_moe else dense_width(model)
    shared = (model.moe_shared_expert_intermediate_size or 0) if is_moe else 0
    rows = topk if is_moe else np.ones(())
    shares = class_shares(model, is_moe=is_moe)
    sublayers = shares.mixing + shares.feed_forward
    norms = 5.0 * sublayers * model.hidden_size
    norms = norms + shares.attention * 2.0 * (query + key) * (2 if model.multi_latent_attention else 1)
    activation = shares.feed_forward * (rows * width + shared) * (gates + 1)
    permute = constants["permute_passes"] * 2.0 * (topk + 1) * expert_input(model) if is_moe else np.zeros(())
    if is_moe and model.add_bias_linear:
        activation = activation + constants["bias_passes"] * topk * (gates * width + expert_input(model))
    inputs = sublayers * model.hidden_size + shares.mixing * value + (shared if is_moe else shares.feed_forward * width)
    if model.multi_latent_attention:  # both down-projections quantize the hidden state, up-projections their latents
        inputs = inputs + shares.attention * (
            model.hidden_size * bool(model.q_lora_rank) + (model.q_lora_rank or 0) + (model.kv_lora_rank or 0)
        )
    quantize = constants["quantize_time"] * inputs
    experts = _expert_quantization(candidates, constants) * topk * (expert_input(model) + width) if is_moe else 0.0
    fused = _fused(candidates, constants, release) if is_moe else np.ones(())
    rate = memory_rate(candidates, constants) / constants[f"overhead.{release.name}"]
    return {
        "norms": norms * each / rate,
        "activation": activation * fused * each / rate,
        "permute": permute * _permuted(candidates, constants) * each / rate,
        "quantize": (quantize + experts * fused)
        * quantized_bytes(candidates)
        * candidates.tokens
        / candidates.tp
        / rate,
    }


def _expert_quantization(candidates: Candidates, constants: Constants) -> float | Floats:
    """Returns the time to quantize the experts' inputs, as a multiple of the time to move their bytes; 0 on a CPU."""
    hardware = candidates.base.hardware
    return 0.0 if hardware.is_cpu else of_architecture(constants, "quantize_expert_time", hardware)


def _permuted(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the factor on the time of routing and permutation; smaller with HybridEP, which permutes while it
    sends, and with all-gather, which permutes once where the others also sort by expert."""
    unfused = np.where(candidates.on("moe_permute_fusion"), 1.0, constants["permute_unfused"])
    flex = candidates.among("moe_token_dispatcher_type", "flex")
    sends = flex & candidates.among("moe_flex_dispatcher_backend", "hybridep")
    gathers = candidates.among("moe_token_dispatcher_type", "allgather")
    apart = np.where(gathers, constants["permute_gathered"], constants["permute_apart"])
    result: Floats = unfused * np.where(sends, 1.0, apart)
    return result


def _fused(candidates: Candidates, constants: Constants, release: Release) -> Floats:
    """Returns the share of the experts' memory-bound work that is left if they are one fused kernel with the gate."""
    return np.where(fuses_experts(candidates, release), constants["fused_mlp_left"], 1.0)


def fuses_experts(candidates: Candidates, release: Release) -> Flags:
    """Returns where experts are counted as one fused kernel with their gate, whether the recipe asks for it or leaves
    it to the release: gated ones in MXFP8, neither split nor offloaded in parts (Megatron-Core's experts.py)."""
    model, known_precisions = candidates.base.architecture, candidates.base.hardware.precisions or ()
    if not (release.fused_grouped_mlp and model.gated_linear_unit and "mxfp8" in known_precisions):
        return np.zeros((), dtype=bool)
    parts = candidates.lists("offload_modules", "expert_fc1") | candidates.lists("offload_modules", "moe_act")
    apart = candidates.on("fine_grained_activation_offloading") & parts
    grouped = candidates.on("moe_grouped_gemm")
    fused: Flags = candidates.among("precision", "mxfp8") & grouped & (candidates.etp == 1) & ~apart
    return fused


def host_s(candidates: Candidates, constants: Constants, release: Release, *, is_moe: bool) -> Floats:
    """Returns the host time of a layer and micro batch, forward and backward, s."""
    hardware = candidates.base.hardware
    experts = candidates.base.architecture.num_moe_experts or 0
    if hardware.is_cpu:
        routed = constants["cpu_moe_us"] + constants["cpu_expert_us"] * experts / candidates.ep if is_moe else 0.0
        waits = constants["cpu_collective_us"] * _collectives(candidates, is_moe=is_moe)
        return (constants["cpu_layer_us"] + routed + waits) * (1 + _launched_again(candidates, constants)) * 1e-6
    captured = candidates.among("cuda_graph_impl", "local", "transformer_engine")
    left = constants["host_graphed"]
    shares = class_shares(candidates.base.architecture, is_moe=is_moe)
    mixed = np.zeros(()) + FEED_LAUNCHES * (1 - shares.mixing)
    for name, share in shares.mixers.items():
        scope = mixers()[name].captured_by
        mixed = mixed + share * np.where(captured & _captures(candidates, scope), left, 1.0)
    router = np.where(captured & _captures(candidates, "moe_router"), left, 1.0)
    quantized = np.where(quantizes(candidates), constants["host_fp8"], 1.0)
    seconds: Floats = constants["host_layer_us"] * mixed * quantized
    if is_moe:
        unfused = constants["host_unfused_permute"] * ~candidates.on("moe_permute_fusion")
        unfused = unfused + constants["host_unfused_router"] * ~candidates.on("moe_router_fusion")
        # With a rank capacity, fused experts read the token counts on the device: no host work per expert
        apart = (_fused(candidates, constants, release) == 1) & ~candidates.on("moe_expert_rank_capacity_factor")
        one_by_one = np.where(candidates.on("moe_grouped_gemm"), 1.0, constants["host_ungrouped"])
        held = experts / candidates.ep * apart * one_by_one
        padded = np.where(candidates.on("moe_pad_expert_input_to_capacity"), constants["host_padded"], 1.0)
        routed = constants["host_moe_us"] * router * (1 + unfused) * quantized
        seconds = seconds + (routed + constants["host_expert_us"] * held) * padded
    slow = constants["host_grace"] if hardware.on_grace else 1.0
    unbound = np.where(candidates.among("cpu_affinity", "none"), 1.0 + constants["host_unbound"], 1.0)
    whole = np.where(candidates.whole_iteration, constants["host_captured"], 1.0)
    again = 1 + _launched_again(candidates, constants)
    halves = np.where(candidates.on("overlap_moe_expert_parallel_comm"), 1 + constants["host_overlap"], 1.0)
    result: Floats = seconds * slow * unbound * whole * again * halves * constants[f"overhead.{release.name}"] * 1e-6
    return result


def operators_s(candidates: Candidates, constants: Constants, *, is_moe: bool) -> Floats:
    """Returns the overhead of operators per layer and micro batch on a CPU rank beyond bytes and GEMMs, forward and
    backward, s: even the smallest operators take time."""
    if not candidates.base.hardware.is_cpu:
        return np.zeros(())
    held = (candidates.base.architecture.num_moe_experts or 0) / candidates.ep if is_moe else np.zeros(())
    return (constants["cpu_operators_us"] + constants["cpu_operators_expert_us"] * held) * 1e-6


def garbage_collection_s(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the seconds of garbage collection by Python per average step.

    With automatic collection each rank collects at its own time, and on GPUs all wait for it; on CPU ranks it is left
    out, since it takes a thousandth of a step there.
    """
    if candidates.base.hardware.is_cpu:
        automatic, at_once = np.zeros(()), constants["cpu_gc_ms"] * 1e-3
    else:
        automatic = np.asarray(constants["host_gc_ms"] * 1e-3)
        at_once = automatic / constants["host_gc_apart"]
    every = candidates.number("manual_gc_interval")
    by_hand = np.where(every > 0, at_once / np.maximum(every, 1.0), 0.0)
    return np.where(candidates.on("manual_gc"), by_hand, automatic)


def _collectives(candidates: Candidates, *, is_moe: bool) -> Floats:
    """Returns the number of collectives per layer and micro batch on a CPU rank; each blocks Python for about as long
    as gloo runs."""
    dispatches = (candidates.ep * candidates.etp > 1) & bool(is_moe)
    return np.where(dispatches, DISPATCH_COLLECTIVES, 0.0) + np.where(candidates.tp > 1, TP_COLLECTIVES, 0.0)


def _captures(candidates: Candidates, module: str) -> Flags:
    """Returns the rows whose CUDA graphs capture `module`; an empty scope captures whole layers."""
    return candidates.where("cuda_graph_scope", lambda scope: not scope or module in scope)


def _launched_again(candidates: Candidates, constants: Constants) -> Floats:
    """Returns the share of a layer's launches that recompute repeats: with full recompute its forward pass, else each
    module's share."""
    modules = candidates.column("recompute_modules").each(lambda words: 1.0 if words is None else float(len(words)))
    selective = candidates.among("recompute_granularity", "selective")
    full = candidates.among("recompute_granularity", "full")
    return np.where(full, FORWARD_SHARE, np.where(selective, constants["host_recompute"] * modules, 0.0))
