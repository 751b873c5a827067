"""Step time by closed form: the time of every part of a training step, and which parts hide others.

A step is micro batches through the slowest pipeline stage, plus the pipeline's bubble and exposed sends, plus what
gradients and parameters leave exposed, plus the optimizer and host work once per step. A stage's time is its layers'
device time (GEMMs, attention, memory-bound work, exposed communication, recompute) and their host time combined: a
smooth maximum of both on a GPU, their sum on a CPU. Constants are in `constants.csv`, fitted to published runs by
`benchmarks/estimate_accuracy.py`, which also judges them on models and GPUs left out.

Shapes: N candidates, P pipeline ranks; parts are seconds per step of the slowest stage, [N].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.estimate.candidates import Candidates, Floats, most_of_ranks, one
from trainer.estimate.held import held_parameters, quantizes_head
from trainer.estimate.learned import TABLES, LearnedCluster
from trainer.estimate.memory.activations import wide_bytes
from trainer.estimate.memory.bound import unbalanced
from trainer.estimate.time.bound import distance, spread
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.constants import constants as fitted
from trainer.estimate.time.data_parallel import data_parallel_s, optimizer_s, stepped_parameters
from trainer.estimate.time.layer_time import LayerTime, layer_time
from trainer.estimate.time.links import GB, collective_s
from trainer.estimate.time.offload import offloaded_share, optimizer_offload_s
from trainer.estimate.time.quantization import quantized_bytes
from trainer.estimate.time.stage_table import LazyParts, StageTable, stretched
from trainer.estimate.time.work import (
    MULTIPLY_ADD,
    TERA,
    garbage_collection_s,
    gemm_tflops,
    memory_rate,
    precision_tflops,
    rank_speed,
)
from trainer.measured.software import latest, releases
from trainer.model.flops import model_flops_per_token
from trainer.model.mixers import mixers
from trainer.recipe.architecture import Architecture
from trainer.recipe.schema import Recipe

CLASSES = ("gemm", "grouped", "attention", "permute", "quantize", "memory_bound")  # classes of compute
SENT = tuple(f"{kind}{side}" for kind in ("ep", "tp", "cp", "offload") for side in ("", "_exposed"))
LAYER_PARTS = (*CLASSES, "compute", "recompute", *SENT)
PARTS = tuple(name for name in (*LAYER_PARTS, "head", "loss", "host") if name not in CLASSES)


@dataclass(frozen=True, kw_only=True)
class TimeTable:
    """Step time of every row, seconds per step, [N] each.

    Parts named `…_exposed_s` are inside the step; `ep_s`, `tp_s`, `cp_s`, `pp_s`, `dp_s` and `offload_s` include hidden
    time, and `host_s` is only what the device waits for.
    """

    by_part: dict[str, Floats]
    step_s: Floats
    tokens_per_s_per_gpu: Floats
    model_tflops_per_gpu: Floats
    spread: Floats  # relative half width of the interval


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """The estimate of one recipe, and its assumptions."""

    by_part: dict[str, float]
    step_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    spread: float
    release: str  # a row of software.csv
    assumptions: tuple[str, ...]


def time_of(
    candidates: Candidates,
    *,
    release: str | None = None,
    constants: Constants | None = None,
    imbalance: float | None = None,
    ends: Sequence[Constants] = (),
) -> TimeTable:
    """Returns the step time of every candidate.

    `release` is a row of software.csv (None: the latest); `constants` are those that differ from the table;
    `imbalance`: tokens of the hottest expert rank over the mean (None: the usual one). Each of `ends` is the constants
    with one learned factor at the end of its interval; they widen the interval of the step.
    """
    stages = stages_of(candidates, release=release, constants=constants, imbalance=imbalance)
    moved = [np.log(stages_of(candidates, release=release, constants=each, imbalance=imbalance).step) for each in ends]
    squares = sum(((step - np.log(stages.step)) ** 2 for step in moved), np.zeros(()))
    slowest = stages.slowest[:, None]
    parts = {f"{name}_s": np.take_along_axis(stages.parts[name], slowest, axis=1)[:, 0] for name in PARTS}
    parts["head_s"] = parts["head_s"] + parts.pop("loss_s")
    parts["host_s"] = parts["host_s"] + stages.fixed
    parts |= {"pp_s": stages.pp, "pp_exposed_s": stages.pp_exposed, "pp_bubble_s": stages.pp_bubble}
    parts["gc_s"] = stages.gc
    parts |= {"dp_s": stages.dp, "dp_exposed_s": stages.dp_exposed, "optimizer_s": stages.optimizer}
    parts["offload_s"] = parts["offload_s"] + stages.offload
    parts["offload_exposed_s"] = parts["offload_exposed_s"] + stages.offload_exposed
    parts["sync_s"] = stages.step - stages.work
    return _table(candidates, parts, stages.step, learned=np.sqrt(squares))


def stages_of(
    candidates: Candidates,
    *,
    release: str | None = None,
    constants: Constants | None = None,
    imbalance: float | None = None,
) -> StageTable:
    """Returns the step time by pipeline rank; arguments as in `time_of`.

    With K sets of constants (arrays [K, 1] among them) every figure has a first axis K.
    """
    values, software = {**fitted(), **(constants or {})}, releases()[release or latest()]
    dense = layer_time(candidates, values, software, is_moe=False)
    moe = dense
    if candidates.base.architecture.num_moe_experts is not None:
        moe = layer_time(candidates, values, software, is_moe=True, given_load=imbalance)
    stage, of_layers = _stage(candidates, values, dense, moe)
    micro_batches = candidates.microbatches[..., None]
    sets = np.broadcast_shapes(*map(np.shape, (constants or {}).values()))[:-1]
    shape = (*sets, *stage["busy"].shape[-2:])

    def part(name: str) -> Floats:
        return np.broadcast_to((stage[name] if name in stage else of_layers(name)) * micro_batches, shape)

    busy = part("busy")
    most = most_of_ranks(busy)
    pp, pp_exposed = _sends(candidates, values, room=most)
    longest = most + pp_exposed
    mean = np.where(candidates.stages.exists, stage["busy"], 0.0).sum(axis=-1) / candidates.pp
    filled = mean + values["bubble_uneven"] * (most_of_ranks(stage["busy"]) - mean)
    bubble = (candidates.pp - 1) / candidates.vpp * filled * values["bubble_time"]
    held = held_parameters(candidates)
    dp, dp_exposed = data_parallel_s(candidates, values, held, passes=longest)
    stepped = stepped_parameters(candidates, held)
    optimizer = optimizer_s(candidates, values, (1 - offloaded_share(candidates)) * stepped)
    offload, offload_exposed = optimizer_offload_s(candidates, values, stepped)
    fixed = values["cpu_step_ms" if candidates.base.hardware.is_cpu else "host_step_ms"] * 1e-3
    bubble = bubble + values["chunks_uneven"] * _chunks_wait(candidates, stage, dense, moe) * candidates.microbatches
    gc = garbage_collection_s(candidates, values)
    work = longest + bubble + dp_exposed + optimizer + offload_exposed + fixed + gc
    once = {"pp": pp, "pp_exposed": pp_exposed, "pp_bubble": bubble}
    once |= {"dp": dp, "dp_exposed": dp_exposed, "optimizer": optimizer, "gc": gc}
    once |= {"offload": offload, "offload_exposed": offload_exposed}
    once |= {"step": work * (1 + values["sync_share"] * (candidates.base.world_size > 1))}
    table = StageTable(
        parts=LazyParts((*LAYER_PARTS, "head", "loss", "host"), part),
        busy=busy,
        fixed=fixed,
        stretch=1.0,
        links_stretch=1.0,
        **{name: np.broadcast_to(seconds, shape[:-1]) for name, seconds in once.items()},
    )
    return stretched(table, candidates, values) if candidates.base.hardware.is_cpu else table


def tokens_per_s_per_gpu(candidates: Candidates, step_s: Floats) -> Floats:
    """Returns the throughput at step times `step_s`: [N], or [K, N] for K sets of constants."""
    tokens = candidates.number("global_batch_size") * candidates.number("seq_length")
    result: Floats = tokens / candidates.base.world_size / step_s
    return result


def _table(candidates: Candidates, parts: dict[str, Floats], step: Floats, *, learned: Floats) -> TimeTable:
    """Returns the table. `learned`: relative half width of the interval that the learned factors leave."""
    tokens = tokens_per_s_per_gpu(candidates, step)
    per_token = candidates.column("seq_length").each(
        lambda length: model_flops_per_token(candidates.base.architecture, int(length))
    )
    return TimeTable(
        by_part=parts,
        step_s=step,
        tokens_per_s_per_gpu=tokens,
        model_tflops_per_gpu=tokens * per_token / TERA,
        spread=np.broadcast_to(np.hypot(spread(candidates), learned), step.shape),
    )


def estimate_time(
    recipe: Recipe, *, release: str | None = None, imbalance: float | None = None, learned: LearnedCluster = TABLES
) -> TimeEstimate:
    """Returns the estimate of one recipe.

    `imbalance`: as in `time_of`; `learned`: the cluster's calibration. Raises KeyError for a release without a row.
    """
    candidates, constants = one(recipe), learned.constants
    table = time_of(candidates, release=release, constants=constants, imbalance=imbalance, ends=learned.ends)
    return TimeEstimate(
        by_part={name: float(part[0]) for name, part in table.by_part.items()},
        step_s=float(table.step_s[0]),
        tokens_per_s_per_gpu=float(table.tokens_per_s_per_gpu[0]),
        model_tflops_per_gpu=float(table.model_tflops_per_gpu[0]),
        spread=float(table.spread[0]),
        release=release or latest(),
        assumptions=_assumptions(candidates, release or latest(), imbalance, {**fitted(), **constants}),
    )


def _assumptions(candidates: Candidates, release: str, imbalance: float | None, values: Constants) -> tuple[str, ...]:
    notes = [f"step time with the software of NeMo {release}"]
    if bool(unbalanced(candidates).any()):
        load = values["natural_imbalance"] if imbalance is None else imbalance
        notes.append(
            f"without forced balance of the experts every layer waits for a rank with {load:.3g} times the mean load"
        )
    if bool((offloaded_share(candidates) > 0).any()) and candidates.base.hardware.host_cpu != "x86":
        notes.append("the host steps an offloaded optimizer as fast as an x86 host: no other was measured")
    return (*notes, *_not_priced(candidates.base.architecture), *_of_figures(candidates), *distance(candidates))


def _not_priced(model: Architecture) -> Iterator[str]:
    """Yields notes on work of the model's mixers and residual streams that the step time leaves out."""
    kinds = {*model.layer_kinds, *((model.mtp_kind,) if model.mtp_num_layers else ())}
    parts = sorted({mixers()[kind.mixer].not_priced for kind in kinds} - {""})
    parts += ["mixing of residual streams"] if model.enable_hyper_connections else []
    if parts:
        yield f"not priced, because no measurement gives its rate: {'; '.join(parts)}"


# figure of a GPU that may be unknown -> the assumption in its place
COUNTED: dict[str, str] = {
    "fp8_tflops": "products in FP8 are counted at the BF16 peak",
    "fp4_tflops": "products in FP4 are counted at the BF16 peak",
    "fp8_copies": "two copies of a weight in FP8 are counted",
    "precisions": "experts in MXFP8 are counted unfused",
    "host_cpu": "launches are counted as on an x86 host",
}


def _of_figures(candidates: Candidates) -> Iterator[str]:
    gpu = candidates.base.hardware
    if not isinstance(candidates.base.cluster.gpu, str):
        yield (
            f"{gpu.name}: products, attention and memory-bound work reach the mean share of the peaks that the fitted "
            "architectures reach, links what NVIDIA's libraries reach"
        )
    for field in gpu.unknown(candidates.base.training.precision):
        yield f"{gpu.name}: {field} is unknown, {COUNTED[field]}"


def _stage(
    candidates: Candidates, values: Constants, dense: LayerTime, moe: LayerTime
) -> tuple[dict[str, Floats], Callable[[str], Floats]]:
    """Returns (seconds per micro batch of every pipeline rank, [N, P], of its work, head, loss and host; a function of
    a part's name that returns those of its layers)."""
    held, model = candidates.stages, candidates.base.architecture
    mtp_moe = held.mtp * float(model.mtp_kind.feed == "moe")
    moes, denses = held.moe + mtp_moe, held.dense + held.mtp - mtp_moe
    # If only some layers have a window, stages with more layers without one have more attention
    uneven = (held.attending - held.dense - held.moe) * moe.attention[..., None]

    def of_layers(name: str) -> Floats:
        seconds: Floats = denses * getattr(dense, name)[..., None] + moes * getattr(moe, name)[..., None]
        return seconds + uneven if name in ("attention", "compute", "device") else seconds

    head, loss = _head(candidates, values), _loss(candidates, values)
    device = of_layers("device") + head + loss
    # A CPU launches nothing ahead: host time and device time add up
    p = np.asarray(1.0 if candidates.base.hardware.is_cpu else values["overlap_power"])[..., None]
    busy = np.where(held.exists, (device**p + of_layers("host") ** p) ** (1 / p), 0.0)
    host = busy - np.where(held.exists, device, 0.0)
    busy = np.broadcast_to(busy, np.broadcast_shapes(busy.shape, (candidates.count, 1)))
    return {"busy": busy, "head": head, "loss": loss, "host": host}, of_layers


def _chunks_wait(candidates: Candidates, stage: dict[str, Floats], dense: LayerTime, moe: LayerTime) -> Floats:
    """Returns the seconds per micro batch that an interleaved pipeline loses if its chunks differ, [N].

    For PP micro batches at a time all ranks are in the same chunk, which takes as long as on its slowest rank.
    """
    held, chunks = candidates.stages, candidates.chunks
    waits = np.zeros(stage["busy"].shape[:-1])
    rows = np.flatnonzero(np.broadcast_to(candidates.vpp > 1, (candidates.count,)))
    if not len(rows):
        return waits
    each_dense, each_moe, each_attention = (
        np.broadcast_to(seconds, waits.shape)[..., rows, None] for seconds in (dense.device, moe.device, moe.attention)
    )
    splits = np.broadcast_to(chunks.of_row, (candidates.count,))[rows]

    def of_rows(values: Floats) -> Floats:
        return np.broadcast_to(values, stage["busy"].shape)[..., rows, :]

    ends, busy = of_rows(stage["head"] + stage["loss"]), of_rows(stage["busy"])
    mtp_moe = float(candidates.base.architecture.mtp_kind.feed == "moe")
    mtp = of_rows(held.mtp) * (mtp_moe * each_moe + (1 - mtp_moe) * each_dense)
    uneven = of_rows(held.attending - held.dense - held.moe) * each_attention
    layers = of_rows(held.moe) * each_moe + of_rows(held.dense) * each_dense + uneven + mtp
    rate = (busy - ends) / np.maximum(layers, 1e-12)  # factor by which host time lengthens the layers' time
    last = np.broadcast_to(candidates.vpp, (candidates.count,))[rows] - 1
    at_end = mtp * rate + ends
    uneven_chunks = chunks.attending - chunks.moe - chunks.dense
    longest = np.zeros(busy.shape[:-1])
    for chunk in range(chunks.moe.shape[2]):
        there = np.flatnonzero(last >= chunk)
        of_moe, of_dense, uneven = (part[splits[there], :, chunk] for part in (chunks.moe, chunks.dense, uneven_chunks))
        layers = of_moe * each_moe[..., there, :] + of_dense * each_dense[..., there, :]
        seconds = (layers + uneven * each_attention[..., there, :]) * rate[..., there, :]
        final = np.flatnonzero(last[there] == chunk)
        seconds[..., final, :] += at_end[..., there[final], :]
        longest[..., there] += most_of_ranks(seconds)
    waits[..., rows] = np.maximum(longest - most_of_ranks(busy), 0.0)
    return waits


def _head(candidates: Candidates, values: Constants) -> Floats:
    """Returns the seconds of the output head's GEMMs on the last rank, for MTP's logits too, and of MTP's projections
    where MTP is, [N, P]; the loss is not included."""
    model, held = candidates.base.architecture, candidates.stages
    rate = gemm_tflops(candidates, values) * TERA
    # The head stays in BF16 in every precision, unless the recipe sets fp8_output_proj
    sustained = precision_tflops(candidates.base.hardware, values, "bf16") * rank_speed(candidates, values)
    narrow, bf16 = quantizes_head(candidates), np.minimum(rate, sustained * TERA)
    flops = 3 * MULTIPLY_ADD * candidates.tokens / candidates.tp
    head = flops * model.vocab_size * model.hidden_size / np.where(narrow, rate, bf16)
    # both the head's input and the gradient of the logits are quantized
    elements = candidates.tokens / candidates.tp * (model.hidden_size + model.vocab_size)
    quantize = values["quantize_time"] * elements * quantized_bytes(candidates) / memory_rate(candidates, values)
    head = head + narrow * quantize
    projection = flops * 2 * model.hidden_size**2 / rate
    heads = held.heads * (1 + (model.mtp_num_layers or 0))
    return heads * head[..., None] + held.mtp * projection[..., None]


def _loss(candidates: Candidates, values: Constants) -> Floats:
    """Returns the seconds of memory-bound work on the logits, [N, P]."""
    logits = 1 + (candidates.base.architecture.mtp_num_layers or 0)
    count = candidates.tokens / candidates.tp * candidates.base.architecture.vocab_size * logits
    rate = memory_rate(candidates, values)
    seconds: Floats = candidates.stages.heads * (count * values["loss_bytes"] / rate)[..., None]
    return seconds


def _sends(candidates: Candidates, values: Constants, *, room: Floats) -> tuple[Floats, Floats]:
    """Returns (total, exposed) seconds to send activations to the next stage and gradients back, for all micro batches.

    The stage's own work (`room`) hides at most as much time as it takes. With microbatch_group_size_per_vp_stage above
    PP, the additional micro batches of a chunk hide sends: they run while the first ones are on other ranks.
    """
    model = candidates.base.architecture
    gb = candidates.tokens / candidates.tp * model.hidden_size * wide_bytes(candidates) / GB
    stride = candidates.base.world_size / candidates.pp
    each = collective_s(candidates, values, gb, np.minimum(candidates.pp, 2.0), stride=stride) * values["pp_time"]
    whole = 2 * each * candidates.vpp * candidates.microbatches
    overlapped = (candidates.vpp > 1) | candidates.on("overlap_p2p_comm")
    hidden = values["p2p_hidden"] * whole + _beyond_pp(candidates) * room
    return whole, whole - np.where(overlapped, np.minimum(np.minimum(hidden, whole), room), 0.0)


def _beyond_pp(candidates: Candidates) -> Floats:
    """Returns the number of micro batches that a rank sends through a chunk beyond PP, divided by PP, [N]; 0 without
    chunks."""
    beyond: Floats = np.where(candidates.vpp > 1, candidates.group / candidates.pp - 1, 0.0)
    return beyond
