"""The recipe: everything that decides how a training job runs, immutable, as people write it in YAML.

The same schema goes in and comes out. Knobs are addressed by Megatron's name alone, whatever section they are
written in: `recipe.knob("micro_batch_size")`, `recipe.replace({"tensor_model_parallel_size": 2})`; the table in
`knobs.py` knows each one's section and default. Reading files and naming every problem is `load.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

KnobValue = bool | int | float | str | tuple[str, ...] | None
Precision = Literal["fp32", "bf16", "fp8_blockwise", "fp8_current", "fp8_delayed", "mxfp8", "nvfp4"]


class Section(BaseModel):
    """A part of a recipe: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Architecture(Section):
    """A GPT-style MoE model in Megatron-Core's own field names (`TransformerConfig`, `MLATransformerConfig`)."""

    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    ffn_hidden_size: int | None = Field(default=None, gt=0)  # dense layers; Megatron's default 4·hidden
    num_query_groups: int | None = Field(default=None, gt=0)  # None: as many as heads
    kv_channels: int | None = Field(default=None, gt=0)  # None: hidden / heads
    num_moe_experts: int | None = Field(default=None, gt=0)  # None: a dense model
    moe_router_topk: int = Field(default=2, gt=0)
    moe_ffn_hidden_size: int | None = Field(default=None, gt=0)
    moe_shared_expert_intermediate_size: int | None = Field(default=None, gt=0)
    moe_layer_freq: int | tuple[int, ...] = 1  # N: every N-th layer is MoE; a tuple of 0/1: which layers are
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_head_dim: int | None = None
    qk_pos_emb_head_dim: int | None = None
    v_head_dim: int | None = None
    mtp_num_layers: int | None = None
    gated_linear_unit: bool = True
    qk_layernorm: bool = False
    untie_embeddings_and_output_weights: bool = True
    hybrid: str | None = (
        None  # a layer pattern that GPTModel cannot build (Mamba, gated delta net): said, not run
    )


class Cluster(Section):
    gpu: str = "cpu"  # a row of hardware.csv, lower case, or "cpu"
    nodes: int = Field(default=1, gt=0)
    gpus_per_node: int | None = Field(default=None, gt=0)  # None: the table's
    memory_gib: float | None = Field(default=None, gt=0)  # per GPU (or CPU rank); None: the table's


class Training(Section):
    seq_length: int = Field(default=4096, gt=0)
    global_batch_size: int = Field(default=256, gt=0)
    micro_batch_size: int = Field(default=1, gt=0)
    precision: Precision = "bf16"


class Parallelism(Section):
    tensor_model_parallel_size: int = Field(default=1, gt=0)
    pipeline_model_parallel_size: int = Field(default=1, gt=0)
    context_parallel_size: int = Field(default=1, gt=0)
    expert_model_parallel_size: int = Field(default=1, gt=0)
    expert_tensor_parallel_size: int | None = Field(default=None, gt=0)  # None: as Megatron, equal to TP
    virtual_pipeline_model_parallel_size: int | None = Field(default=None, gt=0)


class BurstSettings(Section):
    engine: str = "megatron"
    launcher: str = "local"
    warmup_steps: int = Field(default=3, ge=0)
    measure_steps: int = Field(default=8, gt=0)
    trace_steps: int = Field(default=2, ge=0)
    deadline_s: float = Field(default=900.0, gt=0)


class TuneSettings(Section):
    freeze: tuple[str, ...] = ("global_batch_size", "seq_length")
    allow: Literal["training-equivalent", "numerics-changing", "benchmark-only"] = "training-equivalent"
    objective: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    patience: int = Field(default=5, gt=0)  # proposals without an accepted gain before the search stops


class Recipe(Section):
    name: str
    model: str | Architecture  # a preset's name, or the architecture itself
    cluster: Cluster
    training: Training = Training()
    parallelism: Parallelism = Parallelism()
    knobs: dict[str, KnobValue] = {}
    burst: BurstSettings = BurstSettings()
    tune: TuneSettings = TuneSettings()

    # --- architecture and sizes -------------------------------------------------------------------------
    @property
    def architecture(self) -> Architecture:
        """The model's fields, whether written out or named as a preset."""
        raise NotImplementedError

    @property
    def world_size(self) -> int:
        raise NotImplementedError

    @property
    def data_parallel_size(self) -> int:
        """World / (TP·PP·CP)."""
        raise NotImplementedError

    @property
    def num_microbatches(self) -> int:
        raise NotImplementedError

    @property
    def memory_limit_gib(self) -> float | None:
        """Per rank: the recipe's own, else the hardware table's."""
        raise NotImplementedError

    # --- knobs ------------------------------------------------------------------------------------------
    def knob(self, name: str) -> Any:
        """A knob's value: as written, else the table's default. KeyError for a name that is no knob."""
        raise NotImplementedError

    def replace(self, changes: dict[str, Any]) -> Recipe:
        """A recipe with these knobs set (any section). Types are checked, legality is not: see `rules`."""
        raise NotImplementedError

    def diff(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """{knob: (here, there)} for every knob whose value differs, defaults filled in."""
        raise NotImplementedError

    def digest(self) -> str:
        """16 hex digits that two recipes share when no measurement could tell them apart: names, tuning settings,
        deadlines and knobs that are inert beside the others do not count."""
        raise NotImplementedError

    # --- output -----------------------------------------------------------------------------------------
    def to_yaml(self, *, resolved: bool = False) -> str:
        """The recipe as YAML; `resolved` writes every default, knobs included."""
        raise NotImplementedError
