"""Shared parts of a layer's modules: sizes on one rank, the share of launches that CUDA graphs leave, and simple
operations. Launches are host calls with their Python, as multiples of a plain launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from trainer.engines.simulated.ops import Concurrent, Op, Stream
from trainer.engines.simulated.rates import GIGA, Rates
from trainer.model.layer import attention_channels
from trainer.recipe.layout import layout_of
from trainer.recipe.schema import Recipe

GRAPHED = 0.1  # share of launches left if graphs capture a module
WHOLE_GRAPH = 0.02  # share of launches left if a graph captures the iteration
FP8_LAUNCHES = 1.5
LOCAL_LAUNCHES = 1.4  # launches of Megatron-Core's own layers over those of Transformer Engine's fused ones


class Kind(NamedTuple):
    """The kind of a layer: its token mixer, its feed-forward, whether attention has a window, whether it is BF16 in an
    FP8 run, and whether full recompute repeats it."""

    mixer: str
    feed: str
    windowed: bool = False
    wide: bool = False
    again: bool = True


class Parts:
    """Sizes and simple operations of one recipe.

    tokens: of a micro batch on one rank, before sequence parallelism divides them; parted: after.
    """

    def __init__(self, recipe: Recipe, rates: Rates) -> None:
        self.recipe, self.rates, self.model = recipe, rates, recipe.architecture
        layout = layout_of(recipe)
        self.tp, self.cp, self.ep, self.etp = float(layout.tp), float(layout.cp), layout.ep, float(layout.etp)
        training = recipe.training
        self.tokens = training.micro_batch_size * training.seq_length / self.cp
        self.parted = self.tokens / (self.tp if recipe.knob("sequence_parallel") or self.tp == 1 else 1.0)
        self.query, self.key, self.value = attention_channels(self.model)
        self._graphed = self._captured()

    def tp_ring(self, name: str, tokens: float) -> list[Op]:
        if self.tp == 1:
            return []
        gb = tokens * self.model.hidden_size * 2 * (self.tp - 1) / self.tp / GIGA
        us = self.rates.ring_us(gb, self.tp)
        return [Op(kernel=name, us=us, stream=Stream.TP, sms=self.rates.collective_sms(), gb=gb, launches=2)]

    def around_tp(self, collective: list[Op], products: list[Op]) -> list[Op | Concurrent]:
        """Returns a collective before (gather) or after (scatter) GEMMs; with TP overlap, part of it is concurrent with
        them."""
        if not collective:
            return list(products)
        one = collective[0]
        if not self.on("tp_comm_overlap"):
            return [one, *products] if one.kernel == "AllGather" else [*products, one]
        share = self.rates.values["overlap.tp"]
        hidden, left = replace(one, us=share * one.us), replace(one, us=(1 - share) * one.us, launches=0)
        return [Concurrent([hidden], products), left]

    def norm(self, scope: str) -> Op:
        us = self.rates.memory_us(2.5 * self.parted * self.model.hidden_size)
        return Op(kernel="norm", us=us, launches=self.launches(scope, None)(4))

    def gemm(self, name: str, weights: float, launches: float, kind: Kind | None) -> Op:
        wide = kind is not None and kind.wide
        us = self.rates.gemm_us(self.tokens, weights, wide=wide)
        width = weights / self.model.hidden_size
        us += 0.0 if wide else self.rates.quantize_us(self.tokens * min(width, self.model.hidden_size))
        return Op(kernel="gemm", us=us, launches=launches)

    def on(self, knob: str) -> bool:
        return bool(self.recipe.knob(knob))

    def _captured(self) -> Callable[[str], float]:
        """Returns a function that gives the share of a module's launches that CUDA graphs leave."""
        kind, scope = self.recipe.knob("cuda_graph_impl"), self.recipe.knob("cuda_graph_scope") or ()
        if kind == "none":
            return lambda _: 1.0
        if kind == "full_iteration" or "full_iteration" in scope:
            return lambda _: WHOLE_GRAPH
        if not scope:  # an empty scope captures whole layers, if shapes are static
            padded = self.on("moe_pad_expert_input_to_capacity")
            return lambda module: GRAPHED if padded or module in ("attn", "mlp", "moe_router") else 1.0
        return lambda module: GRAPHED if module in scope or (module == "moe_router" and "moe" in scope) else 1.0

    def launches(self, scope: str, kind: Kind | None) -> Callable[[float], float]:
        left = self._graphed(scope)
        narrow = FP8_LAUNCHES if self.rates.narrow and not (kind and kind.wide) else 1.0
        local = LOCAL_LAUNCHES if self.recipe.knob("transformer_impl") == "local" else 1.0
        return lambda count: count * left * narrow * local
