"""The search space of a plan: layouts (sizes, pipeline split, micro batch) and settings (recompute, dispatch, graphs).

Both are tables of `Candidates`; rows that violate a rule are dropped later (`legality.py`). Sizes are those possible on
a cluster of this size; frozen knobs keep the recipe's value, and everything here is training-equivalent unless
`tune.allow` lets the precision change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Column, table
from trainer.estimate.plan.stages import balanced_layouts
from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import has_dense_layers, has_shared_experts, is_moe
from trainer.recipe.rules import FindingKind, check
from trainer.recipe.rules.nearest import CP, EP, ETP, LAYOUT, PP, TP, UNEVEN, VPP, divisors
from trainer.recipe.schema import Recipe

MBS = "micro_batch_size"
OUTPUT = "fp8_output_proj"
MAX_TP, MAX_PP, MAX_EP = 8, 64, 512  # largest sizes searched; runs in our tables have at most 8, 32 and 64
CHUNKS = (1, 2, 3, 4, 6, 8, 12)  # VPP sizes to try
MICRO_BATCHES = (1, 2, 4, 8)
EXCHANGE = ("cp_comm_type", "hierarchical_context_parallel_sizes")
MIN_TOKENS_PER_CP_RANK = 4096  # by Megatron's guides, CP gains from sequences of 8K on, at sizes near sequence / 4096
Option = dict[str, Any]
OFFLOAD = (
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
    "use_precision_aware_optimizer",
    "overlap_cpu_optimizer_d2h_h2d",
    "fine_grained_activation_offloading",
    "offload_modules",
)

# Switched on where they are legal and not frozen: they cost nothing that an estimate or a published recipe would show.
# Not on CPUs: gloo has no reduce-scatter, and its threads need cores.
ALWAYS: Option = {
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_router_fusion": True,
    "cross_entropy_loss_fusion": True,
}


def foundation(recipe: Recipe) -> Recipe:
    """Returns the recipe with the settings of ALWAYS that cause no other error and are not frozen; unchanged on a
    CPU."""
    always = {} if recipe.hardware.is_cpu else ALWAYS
    for name, value in always.items():
        if recipe.knob(name) != value and name not in recipe.tune.freeze:
            changed = recipe.replace({name: value})
            if _errors(changed) <= _errors(recipe):
                recipe = changed
    return recipe


def _errors(recipe: Recipe) -> set[str]:
    return {finding.rule for finding in check(recipe) if finding.kind is FindingKind.ERROR}


def layouts(base: Recipe) -> Candidates:
    """Returns every combination of sizes worth trying, with the pipeline splits of each PP and the micro batches; most
    are illegal."""
    splits, context = list(_splits(base)), [{CP: cp} | way for cp in _context(base) for way in exchanges(base, cp)]
    rest: list[Option] = [
        {**cp, TP: tp, EP: ep, ETP: etp, MBS: batch, "sequence_parallel": tp > 1}
        for tp, cp, ep, batch in product(_tensor(base), context, _experts(base), _micro_batches(base))
        for etp in _expert_tensor(base, tp)
    ]
    pipelines, groups = (table(base, _columns(base, rows)) for rows in (splits, rest))
    every = np.repeat(np.arange(len(splits)), len(rest))
    return crossed(pipelines, groups, every, np.tile(np.arange(len(rest)), len(splits)))


def exchanges(base: Recipe, cp: int) -> list[Option]:
    """Returns the ways in which `cp` context ranks may exchange attention's tensors: the recipe's own, a ring (`p2p`),
    all-to-all over heads (`a2a`), gathered keys and values in models that may require it, and all-to-all inside a node
    with a ring between nodes. With CP 1 or on CPUs only the recipe's own."""
    own: Option = {name: base.knob(name) for name in EXCHANGE}
    if cp == 1 or base.hardware.is_cpu:
        return [own]
    plain: Option = dict.fromkeys(EXCHANGE)
    model, node = base.architecture, base.hardware.gpus_per_node
    gathers = model.window_size is not None or model.experimental_attention_variant is not None
    ways = [plain | {EXCHANGE[0]: kind} for kind in (None, "a2a", *(["all_gather"] * gathers))]
    if cp > node and cp % node == 0:
        ways.append({EXCHANGE[0]: "a2a+p2p", EXCHANGE[1]: (node, cp // node)})
    return _with_own(base, ways)


def settings(base: Recipe, *, offload: bool = False) -> Candidates:
    """Returns every combination of recompute, dispatch, overlap, graphs and, if it may change, precision; on CPUs also
    of data-parallel settings; with `offload`, also of offload to host memory."""
    groups = [recomputes(base), _dispatch(base), _overlap(base), _graphs(base), _precision(base), _replicas(base)]
    groups += [_offloads(base)] if offload else []
    rows = [{name: value for option in chosen for name, value in option.items()} for chosen in product(*groups)]
    return table(base, _columns(base, rows))


def recomputes(base: Recipe) -> list[Option]:
    """Returns the recompute settings: none, the selective sets that save something in this model, full."""
    dense, mla = has_dense_layers(base), base.architecture.multi_latent_attention
    small = ["moe_act"] * is_moe(base) + ["mla_up_proj"] * mla + ["layernorm"] + ["mlp"] * dense
    sets = [tuple(small[:count]) for count in range(1, len(small) + 1)]
    sets += [(name,) for name in small[1:]]
    if is_moe(base):
        shared = ("shared_experts",) * has_shared_experts(base)
        sets += [("moe",), ("moe", *small[1:]), (*small, *shared)]
    options = [_recompute(None), *(_recompute("selective", modules) for modules in dict.fromkeys(sets))]
    return _with_own(base, [*options, full_recompute()])


def _offloads(base: Recipe) -> list[Option]:
    """Returns the offload settings: the recipe's own, the experts' activations (in a model without experts,
    attention's), parts of the optimizer, the whole optimizer, and this with those activations."""
    none: Option = {name: base.knob(name) for name in OFFLOAD}
    modules = ("expert_fc1", "moe_act") if is_moe(base) else ("core_attn",)
    activations = {"fine_grained_activation_offloading": True, "offload_modules": modules}
    whole = _all_offloaded(base)
    parts = [whole | {"optimizer_offload_fraction": share} for share in (0.25, 0.5, 0.75)]
    return _with_own(base, [none, none | activations, *parts, whole, whole | activations])


def _all_offloaded(base: Recipe) -> Option:
    """Returns the whole optimizer in host memory; activations as in the recipe."""
    own = {name: base.knob(name) for name in OFFLOAD}
    return own | {
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
        "use_precision_aware_optimizer": True,  # Megatron's hybrid optimizer needs it
        "overlap_cpu_optimizer_d2h_h2d": True,
    }


def full_recompute() -> Option:
    """Returns full recompute of every layer, which needs least memory."""
    return _recompute("full")


def _recompute(granularity: str | None, modules: tuple[str, ...] | None = None) -> Option:
    full = granularity == "full"
    return {
        "recompute_granularity": granularity,
        "recompute_modules": modules,
        "recompute_method": "uniform" if full else None,
        "recompute_num_layers": 1 if full else None,
    }


def _dispatch(base: Recipe) -> list[Option]:
    """Returns the dispatchers that the GPUs support: alltoall, DeepEP (NVLink domains of eight), HybridEP (also NVL72);
    the all-gather if neither library is available."""
    options: list[Option] = [{"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "deepep"}]
    if is_moe(base) and not base.hardware.is_cpu:
        wanted = ["hybridep"] if base.hardware.is_rack_scale else ["deepep", "hybridep"]
        backends = [name for name in wanted if name in (base.hardware.flex_backends or ())]
        flex = {"moe_token_dispatcher_type": "flex"}
        options += [flex | {"moe_flex_dispatcher_backend": backend} for backend in backends]
        options += [] if backends else [options[0] | {"moe_token_dispatcher_type": "allgather"}]
    return _with_own(base, options)


def _overlap(base: Recipe) -> list[Option]:
    off: Option = {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False}
    on = off | {"overlap_moe_expert_parallel_comm": True}
    return _with_own(base, [off, on] if is_moe(base) and not base.hardware.is_cpu else [off])


def _graphs(base: Recipe) -> list[Option]:
    """Returns the graph settings: the recipe's own, none, attention, and attention with the router and dispatch
    preprocessing; without experts, attention with the feed-forward. Also the whole iteration if capacities give experts
    a fixed shape (Megatron-Core 0.18 and later, as for rank capacities)."""
    none: Option = {"cuda_graph_impl": "none", "cuda_graph_scope": None, "use_te_rng_tracker": False}
    if base.hardware.is_cpu:
        return _with_own(base, [none])
    captured = none | {"cuda_graph_impl": "transformer_engine", "use_te_rng_tracker": True}
    scopes = [("attn",), ("attn", "moe_router", "moe_preprocess")] if is_moe(base) else [("attn", "mlp")]
    whole = captured | {"cuda_graph_impl": "full_iteration"}
    padded = base.knob("moe_pad_expert_input_to_capacity") or base.knob("moe_expert_rank_capacity_factor") is not None
    wholes = [whole] if is_moe(base) and padded else []
    return _with_own(base, [none, *(captured | {"cuda_graph_scope": scope} for scope in scopes), *wholes])


def _precision(base: Recipe) -> list[Option]:
    """Returns the precisions to try, MXFP8 also with the output projection in it; only the recipe's own unless it lets
    numerics change."""
    own: Option = {name: base.knob(name) for name in ("precision", OUTPUT)}
    if base.tune.allow == "training-equivalent" or base.hardware.is_cpu:
        return [own]
    names = ["bf16", *base.hardware.plan_precisions]
    options: list[Option] = [{"precision": name, OUTPUT: False} for name in names]
    return _with_own(base, [own, *options, *[{"precision": "mxfp8", OUTPUT: True}] * ("mxfp8" in names)])


def _replicas(base: Recipe) -> list[Option]:
    """Returns the recipe's own replica knobs on GPUs; on CPUs, whole or sharded optimizers with and without overlap."""
    names = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")
    switches = [(False, False, False), (False, True, False), (True, False, False), (True, True, False), (True,) * 3]
    options = [dict(zip(names, values, strict=True)) for values in switches if base.hardware.is_cpu]
    return _with_own(base, options or [{name: base.knob(name) for name in names}])


def _with_own(base: Recipe, options: list[Option]) -> list[Option]:
    """Returns the options that leave frozen knobs unchanged, with the recipe's own values first."""
    own = {name: base.knob(name) for name in options[0]}
    frozen = own.keys() & set(base.tune.freeze)
    kept = [option for option in options if option != own and all(option[name] == own[name] for name in frozen)]
    return [own, *kept]


def _tensor(base: Recipe) -> list[int]:
    most = min(MAX_TP, max(base.hardware.gpus_per_node, base.cluster.gpus_per_node or 1))
    return _sizes(base, TP, [size for size in _powers(most) if size <= base.world_size])


def _context(base: Recipe) -> list[int]:
    """Returns the CP sizes up to sequence / MIN_TOKENS_PER_CP_RANK; larger ones if there are more ranks than
    sequences."""
    training = base.training
    most = max(1, training.seq_length // MIN_TOKENS_PER_CP_RANK, base.world_size // training.global_batch_size)
    return _sizes(base, CP, _powers(min(most, base.world_size)))


def _experts(base: Recipe) -> list[int]:
    experts = base.architecture.num_moe_experts or 1
    return _sizes(base, EP, [size for size in divisors(experts) if size <= min(MAX_EP, base.world_size)])


def _expert_tensor(base: Recipe, tp: int) -> list[int | None]:
    """Returns the ETP sizes: the recipe's own, 1, and TP, which EP 1 requires; TP as None if the recipe leaves ETP
    unset."""
    written = base.knob(ETP)
    if ETP in base.tune.freeze:
        return [written]
    sizes = sorted({layout_of(base).etp, 1, tp}) if is_moe(base) else [tp]
    return [None if written is None and size == tp else size for size in sizes]


def _micro_batches(base: Recipe) -> list[int]:
    return _sizes(base, MBS, [size for size in MICRO_BATCHES if size <= base.training.global_batch_size])


def _sizes(base: Recipe, name: str, values: Sequence[int]) -> list[int]:
    own = int(base.knob(name))
    return [own] if name in base.tune.freeze else sorted({own, *values})


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _splits(base: Recipe) -> Iterator[Option]:
    """Yields PP, VPP and, for uneven splits, the layout, with the knobs that follow; the recipe's own split first."""
    own = {name: base.knob(name) for name in (PP, VPP, LAYOUT, *UNEVEN, "overlap_p2p_comm")}
    yield own
    if own.keys() & {LAYOUT, *UNEVEN, VPP} & set(base.tune.freeze):
        return
    plain = dict.fromkeys(UNEVEN[:2]) | dict.fromkeys(UNEVEN[2:], False)
    layers = base.architecture.num_layers
    for pp in _sizes(base, PP, [size for size in divisors(base.world_size) if size <= min(MAX_PP, layers)]):
        for vpp in CHUNKS if pp > 1 else (1,):
            for split in _ways(base, pp, vpp):
                chosen = own | plain | split | {"overlap_p2p_comm": vpp > 1}
                if chosen != own:
                    yield chosen


def _ways(base: Recipe, pp: int, vpp: int) -> Iterator[Option]:
    """Yields the even split if the layers divide, and layouts that balance loss and MTP on the last rank."""
    model, stages = base.architecture, pp * vpp
    if model.num_layers % stages == 0:
        yield {PP: pp, VPP: vpp if vpp > 1 else None, LAYOUT: None}
    if pp > 1:
        for text in balanced_layouts(model, base.training.seq_length, pp=pp, vpp=vpp):
            yield {PP: pp, VPP: vpp if vpp > 1 else None, LAYOUT: text}


def is_outlined(name: str) -> bool:
    """Returns whether the first stage of a search varies the knob, since it decides memory."""
    return name.startswith("recompute") or name in OFFLOAD


def with_least_memory(recipe: Recipe) -> Recipe:
    """Returns the recipe with recompute frozen to full and the optimizer frozen to host memory, as far as they are free
    and legal. A layout that does not fit with these fits with no other setting."""
    lean = _frozen_to(foundation(recipe), full_recompute())
    if recipe.hardware.is_cpu:
        return lean
    offloaded = _frozen_to(lean, _all_offloaded(lean))
    return offloaded if _errors(offloaded) <= _errors(lean) else lean


def _frozen_to(recipe: Recipe, option: Option) -> Recipe:
    """Returns the recipe with these values, frozen; unchanged if it freezes one of them already."""
    if option.keys() & set(recipe.tune.freeze):
        return recipe
    tune = recipe.tune.model_copy(update={"freeze": (*recipe.tune.freeze, *option)})
    return recipe.replace(option).model_copy(update={"tune": tune})


def _columns(base: Recipe, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns rows as columns; knobs that no row changes are left to the base."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row[name] for row in rows] for name in names}
    return {name: values for name, values in columns.items() if len(set(values)) > 1 or values[0] != base.knob(name)}


def crossed(
    left: Candidates, right: Candidates, rows: np.ndarray[Any, Any], options: np.ndarray[Any, Any]
) -> Candidates:
    """Joins rows of one table with rows of another, pair by pair; the pairs are two index arrays of equal length."""
    columns = {name: Column(choices=c.choices, codes=c.codes[rows]) for name, c in left.columns.items()}
    columns |= {name: Column(choices=c.choices, codes=c.codes[options]) for name, c in right.columns.items()}
    return Candidates(base=left.base, columns=columns, count=len(rows))
