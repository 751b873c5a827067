"""The model of a recipe: a GPT-style mixture of experts in Megatron-Core's own field names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of a recipe: frozen, unknown keys refused, no silent conversion ("8" is not 8, true is not 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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
    # N: every N-th layer is MoE; a tuple of 0/1: which layers are
    moe_layer_freq: Annotated[int, Field(gt=0)] | Annotated[tuple[Literal[0, 1], ...], Field(strict=False)] = 1
    moe_router_num_groups: int | None = Field(default=None, gt=0)
    moe_router_group_topk: int | None = Field(default=None, gt=0)
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    multi_latent_attention: bool = False
    q_lora_rank: int | None = Field(default=None, gt=0)  # None: queries are projected in one step
    kv_lora_rank: int | None = Field(default=None, gt=0)
    qk_head_dim: int | None = Field(default=None, gt=0)
    qk_pos_emb_head_dim: int | None = Field(default=None, gt=0)
    v_head_dim: int | None = Field(default=None, gt=0)
    mtp_num_layers: int | None = Field(default=None, gt=0)
    gated_linear_unit: bool = True
    qk_layernorm: bool = False
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"  # learnable: attention sinks
    untie_embeddings_and_output_weights: bool = True
    add_bias_linear: bool = False
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    position_embedding_type: Literal["rope", "learned_absolute", "none"] = "rope"
    hidden_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    hybrid: str | None = None  # a layer pattern that GPTModel cannot build (Mamba, gated delta net): said, not run

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """bool[L]: which layers are MoE, as Megatron-Core's `get_moe_layer_pattern` reads `moe_layer_freq`."""
        if self.num_moe_experts is None:
            return (False,) * self.num_layers
        if isinstance(self.moe_layer_freq, tuple):
            return tuple(bool(flag) for flag in self.moe_layer_freq)
        return tuple(layer % self.moe_layer_freq == 0 for layer in range(self.num_layers))
