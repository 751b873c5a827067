"""Checks the exported overrides with real Megatron-Bridge: its recipes, its override code, its validation, no GPU.

`python -m benchmarks.exports_bridge` applies every recipe of `data/tuned_recipes.json` to NVIDIA's Bridge recipe of
the same model as it ships, to that recipe without `comm_overlap` and with a named precision, and to one that sets
most knobs to the opposite; each for a world as large as the recipe's, on the GPU it names. Every knob of the final
configuration is compared with the recipe's. Bridge loads its models' sizes from the Hugging Face hub: its own
provider of the same model replaces that. If Bridge is not installed, it prints what to install; 0.5 and later want
transformers 5 (0.5.0 was read with 5.8.1, 0.6.2 with 5.12.1).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks import bridge_imports
from benchmarks.exports.ask import capability
from benchmarks.places import data_file
from tests.trainer.recipe.tuned_recipes import MODELS, recipe_of_row
from trainer.frameworks.megatron_bridge.architecture import fields
from trainer.frameworks.megatron_bridge.overrides import UNSET, not_expressed, overrides
from trainer.frameworks.megatron_bridge.precision import FORMATS
from trainer.frameworks.megatron_bridge.refusals import refused
from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS, Knob
from trainer.recipe.layout import layout_of
from trainer.recipe.models import presets

RECIPES = "megatron.bridge.recipes."
# our preset -> Bridge's recipe of that model
BASES = {
    "deepseek-v3": "deepseek.deepseek_v3:deepseek_v3_pretrain_config",
    "deepseek-v2": "deepseek.deepseek_v2:deepseek_v2_pretrain_config",
    "deepseek-v2-lite": "deepseek.deepseek_v2:deepseek_v2_lite_pretrain_config",
    "qwen3-30b-a3b": "qwen.qwen3_moe:qwen3_30b_a3b_pretrain_config",
    "qwen3-235b-a22b": "qwen.qwen3_moe:qwen3_235b_a22b_pretrain_config",
    "qwen3-next-80b-a3b": "qwen.qwen3_next:qwen3_next_80b_a3b_pretrain_config",
    "gpt-oss-20b": "gpt_oss.gpt_oss:gpt_oss_20b_pretrain_config",
    "gpt-oss-120b": "gpt_oss.gpt_oss:gpt_oss_120b_pretrain_config",
    "nemotron-3-nano-30b-a3b": "nemotronh.nemotron_3_nano:nemotron_3_nano_pretrain_config",
}
# name on the hub -> Bridge's provider of that model
PROVIDERS = {
    "deepseek-ai/DeepSeek-V3": "deepseek.deepseek_provider:DeepSeekV3ModelProvider",
    "deepseek-ai/DeepSeek-V2": "deepseek.deepseek_provider:DeepSeekV2ModelProvider",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek.deepseek_provider:DeepSeekV2LiteModelProvider",
    "Qwen/Qwen3-30B-A3B": "qwen.qwen_provider:Qwen3MoEModelProvider30B_A3B",
    "Qwen/Qwen3-235B-A22B": "qwen.qwen_provider:Qwen3MoEModelProvider235B_A22B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen.qwen_provider:Qwen3NextModelProvider80B_A3B",
    "openai/gpt-oss-20b": "gpt_oss.gpt_oss_provider:GPTOSSProvider20B",
    "openai/gpt-oss-120b": "gpt_oss.gpt_oss_provider:GPTOSSProvider120B",
}


def _named(prefix: str, path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(prefix + module), name)


def _local_models() -> None:
    """Replaces configurations from the Hugging Face hub by Bridge's own providers."""
    from megatron.bridge import AutoBridge

    def from_hub(name: str, **_: Any) -> Any:
        return type("Local", (), {"to_megatron_provider": staticmethod(lambda **_: _provider(name))})

    AutoBridge.from_hf_pretrained = staticmethod(from_hub)


def _provider(name: str) -> Any:
    """Returns Bridge's own provider of that model; since 0.4, which builds providers from the hub's configuration, one
    built from our preset."""
    models = "megatron.bridge.models."
    if find_spec(models + PROVIDERS[name].partition(":")[0]) is not None:
        return _named(models, PROVIDERS[name])()
    model = presets()[name.rpartition("/")[2].lower().removesuffix("-instruct")]
    kind = "mla_provider:MLAModelProvider" if model.multi_latent_attention else "gpt_provider:GPTModelProvider"
    made = _named(models, kind)
    known = {each.name for each in dataclasses.fields(made)}
    return made(**{at: value for _, at, value, _ in fields(model) if at in known and value is not None})


def shipped(config: Any) -> None:
    """Leaves the Bridge recipe as it is."""


def bare(config: Any) -> None:
    """Removes the objects whose fields the overrides set."""
    config.comm_overlap, config.mixed_precision = None, None


def by_name(config: Any) -> None:
    """Sets the precision by name, which Bridge applies last."""
    config.comm_overlap, config.mixed_precision = None, "bf16_mixed"


def contrary(config: Any) -> None:
    """Sets most knobs to the opposite, with both objects present."""
    from megatron.bridge.training.comm_overlap import CommOverlapConfig, userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192
    from megatron.bridge.training.mixed_precision import bf16_with_mxfp8_mixed

    config.mixed_precision = bf16_with_mxfp8_mixed()
    config.mixed_precision.first_last_layers_bf16 = config.mixed_precision.fp8_dot_product_attention = True
    config.comm_overlap = CommOverlapConfig(
        tp_comm_overlap=True, tp_comm_overlap_cfg=userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192,
        overlap_grad_reduce=False, overlap_param_gather=False, align_param_gather=True, bucket_size=7,
        overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=True,
    )  # fmt: skip
    config.rng.te_rng_tracker = True
    config.ddp.use_megatron_fsdp = config.dist.use_megatron_fsdp = True
    config.checkpoint.ckpt_format = "fsdp_dtensor"
    for section, kind in ((config.model, "model"), (config.ddp, "ddp"), (config.optimizer, "optimizer")):
        for knob in KNOBS.values():
            name = knob.megatron_core or ""
            if knob.acts == kind and knob.domain.kind == "bool" and hasattr(section, name):
                setattr(section, name, not knob.default)
    config.model.recompute_granularity, config.model.recompute_method = "full", "uniform"
    config.model.recompute_num_layers, config.model.offload_modules = 1, ["moe_act"]
    config.model.cuda_graph_impl, config.model.cuda_graph_scope = "local", ["attn"]
    config.model.external_cuda_graph, config.model.virtual_pipeline_model_parallel_size = True, 3
    config.model.pipeline_model_parallel_layout = [["embedding"], ["decoder"], ["loss"]]


VARIANTS: tuple[Callable[[Any], None], ...] = (shipped, bare, by_name, contrary)


def configured(base: Any, recipe: Recipe, version: tuple[int, ...]) -> Any:
    """Returns the final configuration, as in `pretrain`. Raises what Bridge raises."""
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    config = process_config_with_overrides(base, cli_overrides=overrides(recipe, version))
    runtime_config_update(config)
    return config


def compared(config: Any, recipe: Recipe, version: tuple[int, ...]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yields (knob or field, the recipe's value, Bridge's, True if equal) for all that have an effect and were not
    reported as lost."""
    lost = {each.what for each in not_expressed(recipe, version)}
    for knob in KNOBS.values():
        seen = knob.name in READ or _section(config, knob) is not None
        if knob.name in lost or not acts(recipe, knob.name) or not seen:
            continue
        wanted, kept = _wanted(recipe, knob), READ.get(knob.name, _read)(config, knob)
        at_rest = effective(recipe, knob.name) == knob.default
        yield knob.name, wanted, kept, at_rest if kept is MISSING else wanted == kept
    for name, field, value, moved in fields(recipe.architecture):
        kept = getattr(config.model, field, MISSING)
        if value is not None and (moved or kept is not MISSING):  # null: Megatron-Core fills it in
            yield name, value, kept, _plain(value) in (_plain(kept), RENAMED.get(str(kept)))


MISSING = object()
RENAMED = {"gdn": "gated_delta_net"}  # newer Megatron-Core's name of the same value
APPLIED, ACCEPTED = "applied over a base", "accepted by Bridge"
PREDICTED, UNPREDICTED = (
    "refused by Bridge, and by check --for with its reason",
    "refused by Bridge though check accepts",
)
ALTERED = "altered silently"


def _section(config: Any, knob: Knob) -> Any:
    return {"model": config.model, "parallelism": config.model, "ddp": config.ddp, "optimizer": config.optimizer}.get(
        knob.acts
    )


def _read(config: Any, knob: Knob) -> Any:
    """Returns the value of the knob's Megatron-Core field."""
    return _plain(getattr(_section(config, knob), knob.megatron_core or "", MISSING))


def _format(config: Any, _: Knob) -> str:
    model = config.model
    if not model.bf16:
        return "fp32" if not model.fp16 else "fp16"
    found = {name: getattr(model, name) for name in ("fp8", "fp4") if getattr(model, name, None)}
    if not found:
        return "bf16"
    found |= {f"{name}_recipe": getattr(model, f"{name}_recipe") for name in found}
    same = [name for name, fields in FORMATS.items() if all(found.get(key) == fields.get(key) for key in KEYS)]
    return same[-1] if same else str(found)


KEYS = ("fp8", "fp8_recipe", "fp4", "fp4_recipe")


def _graph_scope(config: Any, _: Knob) -> Any:
    scope = getattr(config.model, "cuda_graph_modules", None) or config.model.cuda_graph_scope or []
    return [word for word in _plain(list(scope)) if word != "full_iteration"]


def _graph_impl(config: Any, _: Knob) -> Any:
    scope = _plain(getattr(config.model, "cuda_graph_scope", None) or [])
    return "full_iteration" if "full_iteration" in scope else config.model.cuda_graph_impl


def _layout(config: Any, _: Knob) -> Any:
    found = config.model.pipeline_model_parallel_layout
    return (
        found
        if found is None
        else json.dumps([[[part.name for part in chunk] for chunk in rank] for rank in found.layout])
    )


def _router_dtype(config: Any, _: Knob) -> Any:
    """Returns the dtype's short name; later releases of Megatron-Core have a dtype in its place."""
    found = _plain(config.model.moe_router_dtype)
    return {"float32": "fp32", "float64": "fp64"}.get(found, found)


READ: dict[str, Callable[[Any, Knob], Any]] = {
    "moe_router_dtype": _router_dtype,
    "seq_length": lambda config, _: (
        config.dataset.seq_length if config.dataset.seq_length == config.model.seq_length else None
    ),
    "global_batch_size": lambda config, _: config.train.global_batch_size,
    "micro_batch_size": lambda config, _: config.train.micro_batch_size,
    "manual_gc": lambda config, _: config.train.manual_gc,
    "manual_gc_interval": lambda config, _: config.train.manual_gc_interval,
    "precision": _format,
    "cuda_graph_impl": _graph_impl,
    "cuda_graph_scope": _graph_scope,
    "pipeline_model_parallel_layout": _layout,
}


def _wanted(recipe: Recipe, knob: Knob) -> Any:
    value = effective(recipe, knob.name)
    if knob.name == "pipeline_model_parallel_layout" and value is not None:
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

        made = PipelineParallelLayerLayout.from_str(value, recipe.parallelism.pipeline_model_parallel_size)
        return json.dumps([[[part.name for part in chunk] for chunk in rank] for rank in made.layout])
    if knob.name == "virtual_pipeline_model_parallel_size" and recipe.knob("pipeline_model_parallel_layout"):
        stages = layout_of(recipe).vpp
        return stages if stages > 1 else None
    if value is None and knob.name in UNSET:
        return UNSET[knob.name]
    if knob.name == "transformer_impl":
        return value or "transformer_engine"
    if knob.name == "cuda_graph_impl":
        return "full_iteration" if "full_iteration" in (effective(recipe, "cuda_graph_scope") or ()) else value
    if knob.name == "cuda_graph_scope":
        return [word for word in value or () if word != "full_iteration"]
    return _plain(value)


def _plain(value: Any) -> Any:
    """Returns enums as names, dtypes without their module, and lists sorted, because they are sets."""
    if isinstance(value, (list, tuple)):
        plain = [_plain(each) for each in value]
        return sorted(plain) if all(isinstance(each, str) for each in plain) else plain
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value.name if hasattr(value, "name") and hasattr(value, "value") else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="every N-th recipe of the table")
    parser.add_argument("--show", type=int, default=20, help="reasons to print")
    arguments = parser.parse_args()
    if what := bridge_imports.missing():
        print(what, file=sys.stderr)
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    bridge_imports.prepare()
    logging.disable(logging.CRITICAL)
    _local_models()
    return _report(arguments.every, arguments.show)


def _report(every: int, show: int) -> int:
    from megatron.bridge.package_info import MAJOR, MINOR, PATCH

    version = (MAJOR, MINOR, PATCH)
    rows = json.loads(data_file("tuned_recipes.json").read_text(encoding="utf-8"))[::every]
    made: dict[str, Any] = {}
    count, reasons = (
        Counter[str](dict.fromkeys((APPLIED, ACCEPTED, PREDICTED, UNPREDICTED, ALTERED), 0)),
        Counter[str](),
    )
    for row in rows:
        recipe, model = recipe_of_row(row), _preset(row)
        if model not in BASES:
            count["without a Bridge recipe of their model"] += 1
            continue
        if model not in made:
            made[model] = _base(model)
        if made[model] is None:
            count["of a model whose recipe this release names or makes otherwise"] += 1
            continue
        bridge_imports.set_device(capability(recipe)[0], "NVIDIA " + recipe.cluster.gpu_name.upper())
        os.environ |= {"WORLD_SIZE": str(recipe.world_size), "NVTE_CPU_OFFLOAD_V1": "1"}
        for variant in VARIANTS:
            base = copy.deepcopy(made[model])
            variant(base)
            _one(base, recipe, variant.__name__, version, count, reasons)
    print(f"Megatron-Bridge {'.'.join(map(str, version))}: {len(rows)} recipes, {len(VARIANTS)} bases each")
    for name, number in count.items():
        print(f"{number:7} {name}")
    for reason, number in reasons.most_common(show):
        print(f"{number:7} x {reason}")
    return int(any(count[name] for name in (UNPREDICTED, ALTERED)))


def _base(model: str) -> Any:
    """Returns NVIDIA's recipe of the model; None if the release has none of that name, or none that works without the
    hub."""
    try:
        return _named(RECIPES, BASES[model])()
    except (ImportError, AttributeError, KeyError, TypeError, OSError) as error:
        print(f"{model}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _one(
    base: Any, recipe: Recipe, variant: str, version: tuple[int, ...], count: Counter[str], reasons: Counter[str]
) -> None:
    words = overrides(recipe, version)
    count[APPLIED] += 1
    try:
        config = configured(base, recipe, version)
    except Exception as error:  # Bridge's message is the result
        ours = refused(recipe, ".".join(map(str, version)))
        why, by = " ".join(str(error).split())[:150], f", by check too: {ours[0].rule}" if ours else ""
        count[PREDICTED if ours else UNPREDICTED] += 1
        reasons[f"refused{by} ({variant}): {type(error).__name__} {why}"] += 1
        return
    found = list(compared(config, recipe, version))
    count[ACCEPTED] += 1
    count["overrides written, in those accepted"] += len(words)
    count["values named as NOT EXPRESSED in them"] += len(not_expressed(recipe, version))
    count["knobs and fields compared in them"] += len(found)
    count[ALTERED] += sum(not same for *_, same in found)
    for name, wanted, kept, same in found:
        if not same:
            reasons[f"altered ({variant}): {name}: {wanted} -> {kept}"[:150]] += 1


def _preset(row: dict[str, Any]) -> str:
    name: str = row["model"].lower()
    return MODELS.get(name.lstrip("_"), (name.replace("_", "-"), {}))[0]


if __name__ == "__main__":
    sys.exit(main())
