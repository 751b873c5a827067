"""Overrides `section.key=value` of a Megatron-Bridge recipe, in Hydra's grammar, independent of that recipe's values.

Bridge recipes set knobs of their own, so every knob is written, even at its default or where it cannot act. Two objects
of Bridge are applied after all overrides and would change them: `comm_overlap` is removed and its settings are written
where they act, and `mixed_precision` is written completely. Source: training/config.py (runtime_config_update,
validate) and training/utils/omegaconf_utils.py of src/megatron/bridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.frameworks.megatron_bridge.architecture import fields, fields_not_expressed
from trainer.frameworks.megatron_bridge.hydra import literal, named
from trainer.frameworks.megatron_bridge.precision import FIELDS, mixed_precision
from trainer.frameworks.megatron_bridge.versions import (
    ENVIRONMENT,
    GRAPH_MODULES,
    NEWEST,
    ONE_SM_COUNT,
    Version,
    first_with,
    known_to,
)
from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS, Knob
from trainer.recipe.layout import layout_of
from trainer.recipe.rules.flex import SM_COUNTS


@dataclass(frozen=True, kw_only=True)
class Override:
    """One setting.

    `what`: the knob or field that it sets; `form`: `=`, `++` before the path, or `~` to remove the path.
    """

    what: str
    path: str
    value: Any = None
    form: str = ""

    @property
    def word(self) -> str:
        """Returns the argument, without quotes for a shell."""
        return f"~{self.path}" if self.form == "~" else f"{self.form}{self.path}={literal(self.value)}"


@dataclass(frozen=True, kw_only=True)
class NotExpressed:
    """A value that matters and that no override of this version can set."""

    what: str
    value: Any
    why: str


# knob -> further paths at which Bridge keeps the same value; any of them may decide
ALSO: dict[str, tuple[str, ...]] = {
    "seq_length": ("model.seq_length",),
    "use_distributed_optimizer": ("optimizer.use_distributed_optimizer",),
    "overlap_param_gather": ("optimizer.overlap_param_gather",),
    "use_te_rng_tracker": ("rng.te_rng_tracker",),
    "use_megatron_fsdp": ("dist.use_megatron_fsdp",),
    "moe_router_padding_for_quantization": ("model.moe_router_padding_for_fp8",),
}
OF_LATENT_ATTENTION = ("mla_down_proj_fusion",)  # fields of the providers of such models alone
PROPERTIES = ("dataset.seq_length",)  # properties before 0.6, which can be set although they are not fields
ATTENTION = "megatron.core.transformer.enums.AttnBackend."
UNSET = {"moe_hybridep_num_sms_preprocessing": 108}  # Megatron-Core's default, since null is not a valid value
GRAPHS = ("cuda_graph_impl", "cuda_graph_scope")
# deprecated; the values of a Bridge recipe would override ours
OLD_GRAPHS = ("enable_cuda_graph", "external_cuda_graph")
# written by separate code below, or inside `mixed_precision`
ANY_SM_COUNT = "moe_flex_dispatcher_num_sms"  # acts with NCCL EP, which has no count of its own
NOT_BY_PATH = {"precision", "virtual_pipeline_model_parallel_size", ANY_SM_COUNT, *GRAPHS, *SM_COUNTS, *FIELDS}


def overrides(recipe: Recipe, version: Version = NEWEST) -> list[str]:
    """Returns every override that the recipe needs, in the required order, without quotes for a shell."""
    return [each.word for each in written(recipe, version)]


def written(recipe: Recipe, version: Version = NEWEST) -> list[Override]:
    """Returns the overrides that the recipe needs, in their required order, each with the knob or field it sets."""
    return [
        *_architecture(recipe),
        Override(what="comm_overlap", path="comm_overlap"),
        Override(what="precision", path="mixed_precision"),
        Override(what="precision", path="mixed_precision", value=mixed_precision(recipe, version), form="++"),
        *(each for knob in KNOBS.values() for each in _by_path(recipe, knob, version)),
        *_pipeline(recipe),
        *_graphs(recipe, version),
        *_sm_counts(recipe, version),
        Override(what="use_megatron_fsdp", path="checkpoint.ckpt_format", value=_checkpoints(recipe)),
        *(_environment(recipe) if version >= ENVIRONMENT else ()),
    ]


def not_expressed(recipe: Recipe, version: Version = NEWEST) -> list[NotExpressed]:
    """Returns the values of the recipe that no override of that version of Bridge can set, each with the reason."""
    of_model = (
        NotExpressed(what=name, value=value, why=why) for name, value, why in fields_not_expressed(recipe.architecture)
    )
    return [*of_model, *_knobs_not_expressed(recipe, version)]


def _architecture(recipe: Recipe) -> Iterator[Override]:
    for name, field, value, moved in fields(recipe.architecture):
        yield Override(what=name, path=f"model.{field}", value=value, form="" if moved else "++")


def _by_path(recipe: Recipe, knob: Knob, version: Version) -> Iterator[Override]:
    path = _path(knob)
    if path is None or knob.name in NOT_BY_PATH or knob.acts == "environment":
        return
    if knob.name in OF_LATENT_ATTENTION and not recipe.architecture.multi_latent_attention:
        return
    known = known_to(knob, version)
    if not known and effective(recipe, knob.name) != knob.default:
        return
    value = _bridge_value(recipe, knob)
    for each in (path, *ALSO.get(knob.name, ())):  # `++`, since only some providers have the field
        yield Override(what=knob.name, path=each, value=value, form="" if known and each not in PROPERTIES else "++")


def _path(knob: Knob) -> str | None:
    """Returns the configuration path where a knob acts: Bridge copies `comm_overlap` to model, optimizer and DDP.
    None if Bridge has no field for it."""
    path = knob.megatron_bridge
    if path is None or not path.startswith("comm_overlap."):
        return path
    return f"{knob.acts}.{path.removeprefix('comm_overlap.')}"


def _bridge_value(recipe: Recipe, knob: Knob) -> Any:
    value = effective(recipe, knob.name)
    if knob.name == "attention_backend":
        return named(ATTENTION + value)
    if knob.name == "transformer_impl":
        return value or ("local" if recipe.hardware.is_cpu else "transformer_engine")
    if knob.acts == "optimizer" and knob.name.endswith("_dtype"):
        return f"torch.{value}"
    return UNSET.get(knob.name) if value is None else value


def _pipeline(recipe: Recipe) -> Iterator[Override]:
    """Yields the virtual stages of the layout, and `batch_p2p_comm`, the opposite of the overlap."""
    stages = layout_of(recipe).vpp if recipe.knob("pipeline_model_parallel_layout") else None
    virtual = stages or effective(recipe, "virtual_pipeline_model_parallel_size")
    name = "virtual_pipeline_model_parallel_size"
    yield Override(what=name, path=f"model.{name}", value=virtual if virtual and virtual > 1 else None)
    batched = recipe.parallelism.pipeline_model_parallel_size > 1 and not effective(recipe, "overlap_p2p_comm")
    yield Override(what="overlap_p2p_comm", path="model.batch_p2p_comm", value=batched)


def _graphs(recipe: Recipe, version: Version) -> Iterator[Override]:
    kind, modules = effective(recipe, "cuda_graph_impl"), effective(recipe, "cuda_graph_scope") or []
    whole = kind == "full_iteration" or "full_iteration" in modules
    if version >= GRAPH_MODULES:
        kind, modules = ("full_iteration", []) if whole else (kind, modules)
        yield Override(what="cuda_graph_scope", path="model.cuda_graph_scope")
        yield Override(what="cuda_graph_scope", path="model.cuda_graph_modules", value=modules)
    else:
        kind, modules = ("local", ["full_iteration"]) if whole else (kind, modules)
        yield Override(what="cuda_graph_scope", path="model.cuda_graph_scope", value=modules)
    yield Override(what="cuda_graph_impl", path="model.cuda_graph_impl", value=kind)
    for name in OLD_GRAPHS:
        yield Override(what="cuda_graph_impl", path=f"model.{name}", value=False, form="++")
    if whole:  # a captured iteration cannot check its loss for NaN; config.py refuses it
        yield Override(what="cuda_graph_impl", path="rerun_state_machine.check_for_nan_in_loss", value=False)
        yield Override(what="cuda_graph_impl", path="ddp.check_for_nan_in_grad", value=False)


def _sm_counts(recipe: Recipe, version: Version) -> Iterator[Override]:
    """Yields an SM count per backend.

    From Bridge 0.6 only the acting backend's is set; the count for any backend, which would take precedence, is null.
    """
    for name in SM_COUNTS:
        own = acts(recipe, name) or version < ONE_SM_COUNT
        yield Override(what=name, path=f"model.{name}", value=effective(recipe, name) if own else None)
    value = effective(recipe, ANY_SM_COUNT) if acts(recipe, ANY_SM_COUNT) else None
    if value is None or version >= ONE_SM_COUNT:  # `++`, since not every Megatron-Core used with it has the field
        yield Override(what=ANY_SM_COUNT, path=f"model.{ANY_SM_COUNT}", value=value, form="++")


def _checkpoints(recipe: Recipe) -> str:
    """Returns the only checkpoint format that Bridge accepts with Megatron FSDP, or without it."""
    return "fsdp_dtensor" if effective(recipe, "use_megatron_fsdp") else "torch_dist"


def _environment(recipe: Recipe) -> Iterator[Override]:
    """Yields overrides that replace the Bridge recipe's variables by ours.

    A variable is added before it is removed, so that there is always one to remove.
    """
    for name, knob in KNOBS.items():
        if knob.acts != "environment":
            continue
        value = recipe.knob(name)
        yield Override(what=name, path=f"env_vars.{name}", value="0" if value is None else str(value), form="++")
        if value is None:
            yield Override(what=name, path=f"env_vars.{name}", form="~")


def _knobs_not_expressed(recipe: Recipe, version: Version) -> Iterator[NotExpressed]:
    for knob in KNOBS.values():
        value = recipe.knob(knob.name)
        if not acts(recipe, knob.name) or value == knob.default:
            continue
        if knob.acts != "environment" and not known_to(knob, version):
            since = ".".join(map(str, first_with(knob.since or "")))
            yield NotExpressed(what=knob.name, value=value, why=f"Bridge has it from {since}")
        elif knob.megatron_bridge is None and knob.name != "threads_per_rank":
            yield NotExpressed(what=knob.name, value=value, why="no path in Bridge's configuration")
        elif recipe.knob("use_megatron_fsdp") and knob.name in (
            "average_in_collective",
            "reuse_grad_buf_for_mxfp8_param_ag",
        ):
            yield NotExpressed(what=knob.name, value=value, why="Bridge sets it to false with Megatron FSDP")
