"""Describes a recipe in one line, as engineers write it: `TP2 PP8 VPP4 EP64`, and its main settings."""

from __future__ import annotations

from autotune.looks.quantities import counted, percent
from trainer.estimate.plan.familiar import Familiar
from trainer.fidelity import Fidelity
from trainer.recipe import Recipe


def model_words(recipe: Recipe) -> str:
    """Returns `qwen3-30b-a3b: 48 layers, hidden size 2048, 128 experts, top-8`."""
    model = recipe.architecture
    name = f"{recipe.model}: " if isinstance(recipe.model, str) else ""
    experts = f", {model.num_moe_experts} experts, top-{model.moe_router_topk}" if model.num_moe_experts else ""
    return f"{name}{model.num_layers} layers, hidden size {model.hidden_size}{experts}"


def layout_words(recipe: Recipe) -> str:
    """Returns `TP2 PP8 VPP4 EP64 · DP64 · MBS 1`."""
    now = Familiar.own(recipe).words
    return f"{now} · DP{recipe.data_parallel_size} · MBS {recipe.training.micro_batch_size}"


def fidelity_words(fidelity: Fidelity | None) -> str:
    """Returns `proxy of 2 nodes, 8 layers`; `full size` for the recipe itself."""
    if fidelity is None:
        return "full size"
    return f"proxy of {counted(fidelity.nodes, 'node')}, {counted(fidelity.layers, 'layer')}"


def setting_words(recipe: Recipe) -> str:
    """Returns the main settings besides the layout: precision, recompute, dispatcher, CP exchange if set, overlap, CUDA
    graphs, offload to the host."""
    granularity, modules = recipe.knob("recompute_granularity"), recipe.knob("recompute_modules")
    recompute = "recompute " + (
        " + ".join(modules or ("core_attn",)) if granularity == "selective" else granularity or "none"
    )
    flex = recipe.knob("moe_token_dispatcher_type") == "flex"
    dispatcher = recipe.knob("moe_flex_dispatcher_backend" if flex else "moe_token_dispatcher_type")
    exchanges = recipe.parallelism.context_parallel_size > 1 and recipe.knob("cp_comm_type")
    exchange = f"CP {recipe.knob('cp_comm_type')}" if exchanges else ""
    overlap = "EP overlap" if recipe.knob("overlap_moe_expert_parallel_comm") else ""
    graphs = recipe.knob("cuda_graph_impl") != "none"
    scope = f"graphs {' + '.join(recipe.knob('cuda_graph_scope') or ('whole layers',))}" if graphs else ""
    moe = recipe.architecture.num_moe_experts is not None
    words = (recipe.training.precision, recompute, dispatcher if moe else "", exchange, overlap, scope)
    return ", ".join(filter(None, (*words, _offload_words(recipe))))


def _offload_words(recipe: Recipe) -> str:
    """Returns what is kept in host memory: parts of the optimizer, modules' activations, whole layers'; empty if
    nothing is."""
    kept = []
    if recipe.knob("optimizer_cpu_offload"):
        share = recipe.knob("optimizer_offload_fraction")
        kept.append("optimizer" if share == 1 else f"{percent(share, 0)} of the optimizer")
    if recipe.knob("fine_grained_activation_offloading"):
        kept += recipe.knob("offload_modules") or ()
    if recipe.knob("cpu_offloading"):
        kept.append(f"{recipe.knob('cpu_offloading_num_layers')} layers")
    return f"offload {' + '.join(kept)}" if kept else ""
