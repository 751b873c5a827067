"""Sizes of a rank's layers: tokens, bytes per entry, and the settings that decide which tensors exist."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trainer.engines.simulated.memory.constants import constant
from trainer.engines.simulated.memory.tape import Modules, Tensor
from trainer.recipe.architecture import Architecture
from trainer.recipe.layout import layout_of
from trainer.recipe.schema import Recipe

FP32, MASK, INDEX = 4.0, 1.0, 4.0  # bytes
UNTOUCHED = Modules()


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes for one recipe.

    `load`: tokens of the rank's experts over the mean. `quantized`: the inputs of the layer's linear layers are kept in
    the recipe's FP8 or FP4.
    """

    recipe: Recipe
    load: float
    quantized: bool

    @cached_property
    def model(self) -> Architecture:
        return self.recipe.architecture

    @cached_property
    def tp(self) -> int:
        return layout_of(self.recipe).tp

    @cached_property
    def tokens(self) -> float:
        """Returns the tokens of a micro batch on one context-parallel rank."""
        training = self.recipe.training
        return training.micro_batch_size * training.seq_length / layout_of(self.recipe).cp

    @cached_property
    def sequence_parallel_tokens(self) -> float:
        """Returns the tokens that a rank has between tensor-parallel regions (divided by TP with sequence parallel)."""
        return self.tokens / self.tp if self.recipe.knob("sequence_parallel") else self.tokens

    @cached_property
    def wide(self) -> float:
        """Returns the bytes of an entry in the training precision."""
        return FP32 if self.recipe.training.precision == "fp32" else 2.0

    @cached_property
    def narrow(self) -> float:
        """Returns the bytes of an entry of a linear layer's kept input, scales included."""
        precision = self.recipe.training.precision
        if not self.quantized:
            return self.wide
        return {"nvfp4": 0.5 + 1 / 16, "mxfp8": 1 + 1 / 32, "fp8_blockwise": 1 + 4 / 128}.get(precision, 1.0)

    @cached_property
    def hidden(self) -> float:
        """Returns the bytes of the hidden states between tensor-parallel regions."""
        return self.sequence_parallel_tokens * self.model.hidden_size * self.wide

    @cached_property
    def gathered(self) -> float:
        """Returns the bytes of the gathered hidden states where sequence parallelism gathers them, else 0."""
        return self.tokens * self.model.hidden_size * self.wide if self.sequence_parallel_tokens < self.tokens else 0.0

    @cached_property
    def statistics(self) -> float:
        """Returns the bytes that a norm keeps: fp32 means and deviations."""
        return self.sequence_parallel_tokens * FP32 * (2 if self.model.normalization == "LayerNorm" else 1)

    @cached_property
    def dropout(self) -> bool:
        return self.model.hidden_dropout > 0

    @cached_property
    def delayed_scaling(self) -> bool:
        return self.recipe.training.precision == "fp8_delayed"

    @cached_property
    def local(self) -> bool:
        """Returns whether layers are Megatron-Core's own instead of Transformer Engine's."""
        written = self.recipe.knob("transformer_impl")
        return bool(written == "local" or (written is None and self.recipe.hardware.is_cpu))

    @cached_property
    def keeps_scores(self) -> bool:
        return self.local or self.recipe.knob("attention_backend") in ("unfused", "local")

    def wide_tensor(self, entries: float, modules: Modules = UNTOUCHED, *, grad: bool = True) -> Tensor:
        """Returns a tensor in the training precision, with a gradient of the same size."""
        size = entries * self.wide
        return Tensor(size, size if grad else 0.0, modules)

    def narrow_tensor(self, entries: float, modules: Modules = UNTOUCHED) -> Tensor:
        """Returns a linear layer's own copy of its input."""
        return Tensor(entries * self.narrow, 0.0, modules)

    @cached_property
    def sent(self) -> float:
        """Returns the token copies that a rank sends to experts."""
        return self.sequence_parallel_tokens * self.model.moe_router_topk * self._kept_by_capacity

    @cached_property
    def routed(self) -> float:
        """Returns the token copies that the rank's experts process."""
        rows = (
            self.sequence_parallel_tokens * self.model.moe_router_topk * layout_of(self.recipe).etp * self.acting_load
        )
        return rows + self._padding

    @cached_property
    def stashed(self) -> float:
        """Returns the routed token copies that are kept for backward; with the paged stash, whole pages of those that
        arrived."""
        if not self.recipe.knob("moe_paged_stash"):
            return self.routed
        even = self.sequence_parallel_tokens * self.model.moe_router_topk * layout_of(self.recipe).etp
        pages = constant("stash_page") * self.local_experts / 2
        return min(self.routed, even * self._free_load + pages)

    @cached_property
    def local_experts(self) -> float:
        return (self.model.num_moe_experts or 0) / layout_of(self.recipe).ep

    @cached_property
    def acting_load(self) -> float:
        """Returns the load for which buffers are allocated: the rank capacity if set, however many tokens arrive."""
        allotted = self.recipe.knob("moe_expert_rank_capacity_factor")
        return float(allotted) if allotted else self._free_load

    @cached_property
    def _free_load(self) -> float:
        """Returns the load that an expert capacity lets through; with padding to capacity, the capacity itself."""
        capacity = self.recipe.knob("moe_expert_capacity_factor")
        if capacity and self.recipe.knob("moe_pad_expert_input_to_capacity"):
            return float(capacity)
        most = min(self.load, float(layout_of(self.recipe).ep))
        return min(most, float(capacity)) if capacity else most

    @cached_property
    def _kept_by_capacity(self) -> float:
        capacity = self.recipe.knob("moe_expert_capacity_factor")
        padded = capacity and self.recipe.knob("moe_pad_expert_input_to_capacity")
        return float(capacity) if padded else 1.0

    @cached_property
    def _padding(self) -> float:
        """Returns the rows that pad each expert to the alignment of quantized GEMMs: half of it on average."""
        return constant("expert_alignment") / 2 * self.local_experts if self.quantized else 0.0
