"""The model of a recipe: a GPT-style or hybrid model, with experts or dense, in Megatron-Core's own field names."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

# Mixers that take the place of attention; the last two in every layer, others in all but every N-th
Variant = Literal["gated_delta_net", "lightning_attention", "mamba1", "dsa", "dsv4_hybrid"]
ActivationName = Literal["silu", "gelu", "quick_gelu", "squared_relu"]


# Fields that stretch the rotation to longer sequences
YARN = (
    "rotary_scaling_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


# Limits above every trained model, and small enough to enumerate all divisors
MAX_LAYERS = 10_000
MAX_PARTS = 100_000  # limit on heads and on experts


class Section(BaseModel):
    """One part of a recipe: frozen, unknown keys refused, no silent conversion ("8" is not 8, true is not 1), no
    infinite number or NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Architecture(Section):
    """A model in the fields of Megatron-Core's `TransformerConfig` and `MLATransformerConfig`, where they fit."""

    num_layers: int = Field(gt=0, le=MAX_LAYERS)
    hidden_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0, le=MAX_PARTS)
    vocab_size: int = Field(gt=0)
    ffn_hidden_size: int | None = Field(default=None, gt=0)  # dense layers; Megatron's default 4·hidden
    num_query_groups: int | None = Field(default=None, gt=0)  # None: as many as heads
    kv_channels: int | None = Field(default=None, gt=0)  # None: hidden / heads
    num_moe_experts: int | None = Field(default=None, gt=0, le=MAX_PARTS)  # None: a dense model
    moe_router_topk: int = Field(default=2, gt=0)
    moe_ffn_hidden_size: int | None = Field(default=None, gt=0)
    moe_shared_expert_intermediate_size: int | None = Field(default=None, gt=0)
    # N: every N-th layer is MoE; a tuple of 0/1: which layers are
    moe_layer_freq: Annotated[int, Field(gt=0)] | Annotated[tuple[Literal[0, 1], ...], Field(strict=False)] = 1
    moe_router_num_groups: int | None = Field(default=None, gt=0)
    moe_router_group_topk: int | None = Field(default=None, gt=0)
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    moe_router_pre_softmax: bool = False  # softmax over all experts, before the choice
    # factor on the weights of the chosen experts
    moe_router_topk_scaling_factor: float | None = Field(default=None, gt=0.0)
    moe_router_enable_expert_bias: bool = False  # balances load without a loss: experts are chosen by score plus bias
    moe_router_bias_update_rate: float = Field(default=1e-3, ge=0.0)
    moe_aux_loss_coeff: float = Field(default=1e-2, ge=0.0)
    multi_latent_attention: bool = False
    q_lora_rank: int | None = Field(default=None, gt=0)  # None: queries are projected in one step
    kv_lora_rank: int | None = Field(default=None, gt=0)
    qk_head_dim: int | None = Field(default=None, gt=0)
    qk_pos_emb_head_dim: int | None = Field(default=None, gt=0)
    v_head_dim: int | None = Field(default=None, gt=0)
    mtp_num_layers: int | None = Field(default=None, gt=0, le=MAX_LAYERS)
    mtp_loss_scaling_factor: float = Field(default=0.1, ge=0.0)
    mtp_use_repeated_layer: bool = False  # one MTP layer, used mtp_num_layers times
    gated_linear_unit: bool = True
    activation_func: ActivationName | None = None  # None: see `activation`
    activation_func_clamp_value: float | None = Field(default=None, gt=0.0)  # clamps both halves of gated experts
    glu_linear_offset: float = 0.0
    qk_layernorm: bool = False
    qk_l2_norm: bool = False
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"  # learnable: attention sinks
    use_fused_weighted_squared_relu: bool = False  # experts' activation in a kernel that also applies the probabilities
    untie_embeddings_and_output_weights: bool = True
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    layernorm_epsilon: float = Field(default=1e-5, gt=0.0)
    layernorm_zero_centered_gamma: bool = False
    init_method_std: float = Field(default=0.02, gt=0.0)
    position_embedding_type: Literal["rope", "yarn", "learned_absolute", "none"] = "rope"
    rotary_base: float = Field(default=10000.0, gt=0.0)
    rotary_percent: float = Field(default=1.0, gt=0.0, le=1.0)
    rotary_interleaved: bool = False
    # N: every N-th layer has no rotation; a tuple of 0/1: which layers have none
    no_rope_freq: Annotated[int, Field(gt=0)] | Annotated[tuple[Literal[0, 1], ...], Field(strict=False)] | None = None
    use_rope_scaling: bool = False  # Llama 3's scaling, by rope_scaling_factor
    rope_scaling_factor: float = Field(default=8.0, gt=0.0)
    rope_type: Literal["rope", "yarn"] = "rope"  # of latent attention; other models write position_embedding_type
    # YaRN, with latent attention or without; Megatron-Core's own defaults of latent attention
    rotary_scaling_factor: float = Field(default=40.0, gt=0.0)
    original_max_position_embeddings: int = Field(default=4096, gt=0)
    beta_fast: float = Field(default=32.0, gt=0.0)
    beta_slow: float = Field(default=1.0, gt=0.0)
    mscale: float = Field(default=1.0, ge=0.0)
    mscale_all_dim: float = Field(default=0.0, ge=0.0)
    yarn_correction_range_round_to_int: bool = True
    hidden_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    attention_output_gate: bool = False
    # (left, right) tokens a query sees, in all layers but every N-th, or in those with 1 in the tuple
    window_size: Annotated[tuple[int, int], Field(strict=False)] | None = None
    window_attn_skip_freq: Annotated[int, Field(gt=0)] | Annotated[tuple[int, ...], Field(strict=False)] | None = None
    # Llama 4's chunked attention: Megatron-Core has no field for it
    attention_chunk_size: int | None = Field(default=None, gt=0)
    moe_shared_expert_gate: bool = False
    moe_latent_size: int | None = Field(default=None, gt=0)  # width in which experts work; None: the hidden size
    # the vocabulary is padded to a multiple of this times TP; None: no padding
    make_vocab_size_divisible_by: int | None = Field(default=None, gt=0)
    experimental_attention_variant: Variant | None = None
    # N: every N-th layer keeps full attention; a tuple of 0/1: which layers have none
    linear_attention_freq: (
        Annotated[int, Field(gt=0)] | Annotated[tuple[Literal[0, 1], ...], Field(strict=False)] | None
    ) = None
    linear_conv_kernel_dim: int = Field(default=4, gt=0)
    linear_key_head_dim: int = Field(default=128, gt=0)
    linear_value_head_dim: int = Field(default=128, gt=0)
    linear_num_key_heads: int = Field(default=16, gt=0)
    linear_num_value_heads: int = Field(default=32, gt=0)
    mamba_num_heads: int | None = Field(default=None, gt=0)  # None: 2·hidden / mamba_head_dim
    mamba_head_dim: int = Field(default=64, gt=0)
    mamba_state_dim: int = Field(default=128, gt=0)
    mamba_num_groups: int = Field(default=8, gt=0)
    mamba_dt_rank: int | None = Field(default=None, gt=0)  # for Mamba-1; None: a sixteenth of the hidden size
    hybrid: str | None = None  # the layers in the letters of Megatron-Core's hybrid pattern, or in words
    mtp_hybrid_override_pattern: str | None = None  # letters of one MTP layer; None: as the last decoder layer
    dsa_indexer_n_heads: int | None = Field(default=None, gt=0, le=MAX_PARTS)  # heads of sparse attention's indexer
    dsa_indexer_head_dim: int | None = Field(default=None, gt=0)
    dsa_indexer_topk: int | None = Field(default=None, gt=0)  # positions a query attends to
    # DeepSeek-V4's attention (Megatron-LM's dev branch): one ratio per layer (0: a window only), MTP's last
    csa_compress_ratios: Annotated[tuple[Literal[0, 4, 128], ...], Field(strict=False)] | None = None
    csa_window_size: int = Field(default=128, gt=0)
    # groups of heads, each with an output projection of rank o_lora_rank
    o_groups: int | None = Field(default=None, gt=0)
    o_lora_rank: int | None = Field(default=None, gt=0)
    enable_hyper_connections: bool = False  # residual streams mixed before and after each sublayer
    num_residual_streams: int = Field(default=4, gt=0)
    moe_n_hash_layers: int = Field(default=0, ge=0)  # number of first layers that choose experts by the token's id

    @property
    def activation(self) -> ActivationName:
        """Returns the activation: as written, else squared ReLU if its fused kernel is on, else the default of
        Megatron's launchers (SiLU if gated, else GELU)."""
        if self.activation_func is not None:
            return self.activation_func
        if self.use_fused_weighted_squared_relu:
            return "squared_relu"
        return "silu" if self.gated_linear_unit else "gelu"

    @property
    def yarn(self) -> bool:
        """Returns true if positions use YaRN's rotary embedding."""
        return (self.rope_type if self.multi_latent_attention else self.position_embedding_type) == "yarn"

    @property
    def hybrid_pattern(self) -> str | None:
        """Returns the layer letters at the start of `hybrid`, without those that split the pipeline; None for a model
        of GPT layers."""
        letters = HYBRID_LETTERS.match(self.hybrid or "")
        return letters[0].replace("|", "") if letters else None

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """Returns bool[L], True for MoE layers: by the letters of a hybrid model, else as Megatron-Core's
        `get_moe_layer_pattern` reads `moe_layer_freq`."""
        if self.num_moe_experts is None:
            return (False,) * self.num_layers
        letters = self.hybrid_pattern
        if letters and len(letters) == self.num_layers:
            return tuple(letter == "E" for letter in letters)
        if isinstance(self.moe_layer_freq, tuple):
            return tuple(bool(flag) for flag in self.moe_layer_freq)
        return tuple(layer % self.moe_layer_freq == 0 for layer in range(self.num_layers))

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Returns LayerKind[L]: mixer and feed-forward block of each layer.

        Source: Megatron-Core `get_linear_attention_pattern`; `mamba_hybrid_layer_allocation.py` for the letters.
        """
        letters = self.hybrid_pattern
        if letters and len(letters) == self.num_layers:
            return tuple(_OF_LETTER[letter] for letter in letters)
        return tuple(
            LayerKind(mixer=mixer, feed="moe" if is_moe else "dense")
            for mixer, is_moe in zip(self._mixers(), self.moe_layers, strict=False)
        )

    def _mixers(self) -> tuple[str, ...]:
        """Returns the mixer of each layer of a model without hybrid letters."""
        variant, every, layers = self.experimental_attention_variant, self.linear_attention_freq, self.num_layers
        if variant == "dsa":
            return (variant,) * layers
        if variant == "dsv4_hybrid" and self.csa_compress_ratios:
            return tuple(_OF_RATIO[ratio] for ratio in self.csa_compress_ratios[:layers])
        if variant is None or not every:
            return ("attention",) * layers
        linear = every if isinstance(every, tuple) else tuple((layer + 1) % every for layer in range(layers))
        return tuple(variant if flag else "attention" for flag in linear)

    @property
    def mtp_kind(self) -> LayerKind:
        """Returns the kind of a multi-token-prediction layer: that of the last decoder layer (with the compression
        ratio given for MTP, if any), or the first mixer and the first feed-forward of the MTP pattern's letters."""
        if not self.mtp_hybrid_override_pattern:
            own = (self.csa_compress_ratios or ())[self.num_layers : self.num_layers + 1]
            last = self.layer_kinds[-1]
            return last._replace(mixer=_OF_RATIO[own[0]]) if own else last
        kinds = [_OF_LETTER[letter] for letter in self.mtp_hybrid_override_pattern]
        mixers, feeds = ([part for part in parts if part != "none"] for parts in zip(*kinds, strict=True))
        return LayerKind(mixer=mixers[0] if mixers else "none", feed=feeds[0] if feeds else "none")

    @property
    def most_mtp_layers(self) -> int:
        """Returns the MTP layers with parameters of their own, which is the most that one stage can hold."""
        return min(1, self.mtp_num_layers or 0) if self.mtp_use_repeated_layer else self.mtp_num_layers or 0

    @property
    def windowed_layers(self) -> tuple[bool, ...]:
        """Returns bool[L], True for layers with window attention. Source: Megatron-Core `is_layer_window_attention`."""
        skip = self.window_attn_skip_freq
        if self.window_size is None:
            return (False,) * self.num_layers
        if isinstance(skip, tuple):
            return tuple(bool(flag) for flag in skip)
        return tuple(skip is None or (layer + 1) % skip != 0 for layer in range(self.num_layers))


class LayerKind(NamedTuple):
    """Mixer and feed-forward block of a layer.

    A layer of a hybrid model may lack one of them (`none`) with its norm.
    """

    mixer: str  # name of a file in trainer/model/mixers
    feed: Literal["dense", "moe", "none"]


HYBRID_LETTERS = re.compile(r"[ME*-][ME*|-]*")  # letters of Megatron-Core's hybrid pattern, at the start of `hybrid`
_OF_RATIO = {0: "window_attention", 4: "csa", 128: "hca"}  # mixer by ratio of csa_compress_ratios
_OF_LETTER = {
    "M": LayerKind("mamba", "none"),
    "*": LayerKind("attention", "none"),
    "E": LayerKind("none", "moe"),
    "-": LayerKind("none", "dense"),
}
