"""Feed-forward work that every token goes through: dense layers, and the shared expert."""

from __future__ import annotations

from trainer.engines.simulated.ops import Concurrent, Op, inside, within
from trainer.engines.simulated.parts import Kind, Parts
from trainer.model.layer import dense_width, mlp_matrices


class Feeds:
    """The dense feed-forward operations of one recipe, forward."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.rates, self.model = parts.rates, parts.model
        self.tp, self.tokens, self.parted = parts.tp, parts.tokens, parts.parted

    def feed_forward(self, kind: Kind) -> list[Op | Concurrent]:
        width, hidden, launches = (
            dense_width(self.model) / self.tp,
            self.model.hidden_size,
            self.parts.launches("mlp", kind),
        )
        gates = mlp_matrices(self.model) - 1
        ops: list[Op | Concurrent] = [
            self.parts.norm("mlp"),
            *self.parts.around_tp(
                self.parts.tp_ring("AllGather", self.tokens),
                [self.parts.gemm("fc1", gates * width * hidden, launches(8), kind)],
            ),
            Op(kernel="activation", us=self.rates.memory_us(self.tokens * (gates + 1) * width), launches=launches(3)),
            *self.parts.around_tp(
                self.parts.tp_ring("ReduceScatter", self.tokens),
                [self.parts.gemm("fc2", width * hidden, launches(8), kind)],
            ),
            Op(kernel="residual", us=self.rates.memory_us(3 * self.parted * hidden), launches=launches(3)),
        ]
        return inside(ops, "mlp")

    def shared(self, kind: Kind) -> list[Op]:
        width, hidden = (self.model.moe_shared_expert_intermediate_size or 0) / self.tp, self.model.hidden_size
        if not width:
            return []
        gates, launches = mlp_matrices(self.model) - 1, self.parts.launches("moe_router", kind)
        tokens = self.tokens
        return within(
            [
                self.parts.gemm("fc1", gates * width * hidden, launches(8), kind),
                Op(kernel="activation", us=self.rates.memory_us(tokens * (gates + 1) * width), launches=launches(3)),
                self.parts.gemm("fc2", width * hidden, launches(8), kind),
            ],
            "shared_experts",
        )
