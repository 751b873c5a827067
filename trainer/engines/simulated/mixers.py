"""Token mixers of a layer: attention with its projections and context parallelism, and linear mixers."""

from __future__ import annotations

from msgspec.structs import replace

from trainer.engines.simulated.ops import Concurrent, Op, Stream, inside
from trainer.engines.simulated.parts import Kind, Parts
from trainer.engines.simulated.rates import GIGA
from trainer.measured.links import COLLECTIVE
from trainer.model.mixers import mixers

BACKWARD_LAUNCHES = 1.1  # launches of backward over those of forward: autograd makes more calls, from C++
UNFUSED_PASSES = 5.0  # passes over the scores of unfused attention

PROJECTED = ("attention", "dsa")  # mixers with projections of queries, keys and values
# positions per compressed key, in addition to the window; 0: only the window
COMPRESSED = {"window_attention": 0, "csa": 4, "hca": 128}


def _mean_reach(most: float, length: float) -> float:
    """Returns the mean number of visible earlier positions in a sequence of `length`; `most` limits it (0: no
    limit)."""
    return most - most * most / (2 * length) if 0 < most < length else length / 2


class Mixers:
    """The mixers of one recipe, forward."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.recipe, self.rates, self.model = parts.recipe, parts.rates, parts.model
        self.tp, self.cp, self.tokens, self.parted, self.query, self.key, self.value = (
            parts.tp,
            parts.cp,
            parts.tokens,
            parts.parted,
            parts.query,
            parts.key,
            parts.value,
        )

    def mixer(self, kind: Kind) -> list[Op | Concurrent]:
        if kind.mixer == "none":
            return []
        if kind.mixer not in PROJECTED:
            return self._other_mixer(kind)
        hidden, rates, launches = self.model.hidden_size, self.rates, self.parts.launches("attn", kind)
        ops: list[Op | Concurrent] = [
            self.parts.norm("attn"),
            *self.parts.around_tp(self.parts.tp_ring("AllGather", self.tokens), self._projections(kind)),
            *self._indexer(kind),
            Op(
                kernel="rope",
                us=rates.memory_us(2 * self.tokens * (self.query + self.key) / self.tp),
                launches=launches(6),
            ),
            *self._with_cp(self.core(kind, backward=False)),
            *self.parts.around_tp(
                self.parts.tp_ring("ReduceScatter", self.tokens),
                [self.parts.gemm("proj", self._out_width() * hidden / self.tp, launches(8), kind)],
            ),
            Op(kernel="residual", us=rates.memory_us(3 * self.parted * hidden), launches=launches(3)),
        ]
        return inside(ops, "attention")

    def core(self, kind: Kind, *, backward: bool) -> Op:
        seen = self._seen(kind)
        us = self.rates.attention_us(self.tokens, seen, tp=self.tp, backward=backward)
        if self.recipe.knob("attention_backend") in ("unfused", "local"):  # every score goes through memory
            scores = self.tokens * 2 * seen * self.model.num_attention_heads / self.tp
            us += self.rates.memory_us(UNFUSED_PASSES * scores)
        name = "attention_backward" if backward else "attention_forward"
        return Op(
            kernel=name, us=us, launches=self.parts.launches("attn", kind)(12 * (BACKWARD_LAUNCHES if backward else 1))
        )

    def _out_width(self) -> float:
        return self.value if self.model.multi_latent_attention else self.query

    def _projections(self, kind: Kind) -> list[Op]:
        model, launches = self.model, self.parts.launches("attn", kind)
        if not model.multi_latent_attention:
            width = self.query * (2 if model.attention_output_gate else 1) + self.key + self.value
            return [self.parts.gemm("qkv", model.hidden_size * width / self.tp, launches(8), kind)]
        q_rank, kv_rank, rope = model.q_lora_rank or 0, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
        down = model.hidden_size * (q_rank + kv_rank + rope)
        return [
            self.parts.gemm("down", down / self.tp, launches(10), kind),
            Op(
                kernel="norm",
                us=self.rates.memory_us(2 * self.tokens * (q_rank + kv_rank) / self.tp),
                launches=launches(5),
            ),
            *self.up_projections(kind),
        ]

    def up_projections(self, kind: Kind) -> list[Op]:
        model, launches = self.model, self.parts.launches("attn", kind)
        q_rank, kv_rank = model.q_lora_rank or model.hidden_size, model.kv_lora_rank or 0
        rope = model.num_attention_heads * (model.qk_pos_emb_head_dim or 0)
        up = q_rank * self.query + kv_rank * (self.key - rope + self.value)
        entries = self.tokens * (self.query + self.key + self.value) / self.tp
        return [
            self.parts.gemm("up", up / self.tp, launches(12), kind),
            Op(kernel="residual", us=self.rates.memory_us(entries), launches=launches(4)),
        ]

    def _indexer(self, kind: Kind) -> list[Op]:
        """Returns the GEMMs of the indexer, which every tensor-parallel rank computes in full; its scores and top-k are
        not simulated."""
        if kind.mixer != "dsa":
            return []
        heads, width = self.model.dsa_indexer_n_heads or 0, self.model.dsa_indexer_head_dim or 0
        weights = (self.model.q_lora_rank or self.model.hidden_size) * heads * width
        weights += self.model.hidden_size * (width + heads)
        return [self.parts.gemm("index", float(weights), self.parts.launches("attn", kind)(12), kind)]

    def _other_mixer(self, kind: Kind) -> list[Op | Concurrent]:
        """Returns the ops of a mixer other than plain attention: norm, GEMMs with TP collectives, between them
        attention (for a linear mixer a memory-bound scan), and the residual."""
        launches = self.parts.launches("attn", kind)
        attends = mixers()[kind.mixer].attends
        each = mixers()[kind.mixer].parameters(self.model)
        weights = each.split / self.tp + each.whole if attends else self._scanned_weights(kind)
        hidden = self.model.hidden_size
        ops = [
            self.parts.norm("attn"),
            *self.parts.around_tp(
                self.parts.tp_ring("AllGather", self.tokens), [self.parts.gemm("in", 0.7 * weights, launches(10), kind)]
            ),
            self.core(kind, backward=False)
            if attends
            else Op(kernel="scan", us=self.rates.memory_us(12 * self.tokens * hidden / self.tp), launches=launches(25)),
            *self.parts.around_tp(
                self.parts.tp_ring("ReduceScatter", self.tokens),
                [self.parts.gemm("out", 0.3 * weights, launches(8), kind)],
            ),
            Op(kernel="residual", us=self.rates.memory_us(3 * self.parted * hidden), launches=launches(3)),
        ]
        return inside(ops, "attention")

    def _scanned_weights(self, kind: Kind) -> float:
        return mixers()[kind.mixer].flops(self.model, 0.0) / self.tp

    def _seen(self, kind: Kind) -> float:
        length = float(self.recipe.training.seq_length)
        if kind.mixer in COMPRESSED:
            ratio, most = COMPRESSED[kind.mixer], self.model.dsa_indexer_topk if kind.mixer == "csa" else None
            keys = _mean_reach(most or 0, length / ratio) if ratio else 0.0
            return _mean_reach(self.model.csa_window_size, length) + keys
        if kind.mixer == "dsa":
            return _mean_reach(self.model.dsa_indexer_topk or 0, length)
        return _mean_reach(self.model.window_size[0] if kind.windowed and self.model.window_size else 0, length)

    def _with_cp(self, core: Op) -> list[Op | Concurrent]:
        if self.cp == 1:
            return [core]
        kind = self.recipe.knob("cp_comm_type") or "p2p"
        stride = self.tp
        kv = self.tokens * (self.key + self.value) / self.tp * 2 / GIGA
        if kind in ("a2a", "a2a+p2p"):
            sizes = self.recipe.knob("hierarchical_context_parallel_sizes") if kind == "a2a+p2p" else None
            among = float(sizes[0]) if sizes else self.cp
            half = [self._head_all_to_all(among)] if among > 1 else []
            return [*half, *self._around_the_ring(core, kv, self.cp / among), *half]
        if kind == "all_gather":
            us = self.rates.ring_us(kv * (self.cp - 1), self.cp, stride=stride)
            gather = Op(kernel="AllGather", us=us, stream=Stream.CP, sms=self.rates.collective_sms(), gb=kv, launches=3)
            return [gather, core]
        return self._around_the_ring(core, kv, self.cp)

    def _head_all_to_all(self, ranks: float) -> Op:
        """Returns one of the two all-to-alls of a pass that distribute heads over `ranks` neighbouring context
        ranks."""
        every = self.tokens * (2 * self.query + self.key + self.value) / self.tp * 2 / GIGA
        us = self.rates.ring_us(every * (ranks - 1) / ranks / 2, ranks, stride=self.tp)
        sms = self.rates.collective_sms()
        return Op(kernel="SendRecv", us=us, stream=Stream.CP, sms=sms, gb=every / 2, launches=3)

    def _around_the_ring(self, core: Op, kv_gb: float, steps: float) -> list[Op | Concurrent]:
        """Returns attention in as many equal steps as the ring has ranks.

        In all but the last step, the next keys and values arrive. Every hop is as slow as the one that leaves the
        NVLink domain, over one rank's own link.
        """
        if steps <= 1:
            return [core]
        fabric = self.rates.fabric(self.cp * self.tp)
        hop = self.rates.latency_us(fabric) + self.rates.send_us(kv_gb, fabric, COLLECTIVE)
        hops = steps - 1
        ring = Op(
            kernel="SendRecv",
            us=hops * hop,
            stream=Stream.CP,
            sms=0.5 * self.rates.collective_sms(),
            gb=hops * kv_gb,
            launches=2 * hops,
        )
        overlapped, last = (
            replace(core, us=core.us * share, launches=core.launches * share) for share in (hops / steps, 1 / steps)
        )
        return [Concurrent([ring], [overlapped]), last]
