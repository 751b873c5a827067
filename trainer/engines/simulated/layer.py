"""One layer for one micro batch on one rank, forward and backward, in the segments that EP overlap interleaves.

Sizes are counted on Megatron-Core's modules with Transformer Engine. Only this module and its parts (`parts.py`,
`mixers.py`, `feeds.py`, `routed.py`) know the effect of a knob on a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from msgspec.structs import replace

from trainer.engines.simulated.feeds import Feeds
from trainer.engines.simulated.mixers import BACKWARD_LAUNCHES, PROJECTED, Mixers
from trainer.engines.simulated.ops import Concurrent, Op, Segment, Stream, inside
from trainer.engines.simulated.parts import Kind, Parts
from trainer.engines.simulated.rates import GIGA, Rates
from trainer.engines.simulated.routed import Routed
from trainer.model.layer import expert_width, mlp_matrices
from trainer.model.mixers import mixers
from trainer.recipe.schema import Recipe

BACKWARD_KERNELS = {"norm": "norm_backward", "activation": "activation_backward"}


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The operations of a layer's pass, in order; segments that a layer lacks are empty.

    `late`: weight gradients that may be delayed.
    """

    before: Segment
    send: Segment
    middle: Segment
    back: Segment
    after: Segment = ()
    late: Segment = ()

    @property
    def all(self) -> list[Op | Concurrent]:
        return [*self.before, *self.send, *self.middle, *self.back, *self.after, *self.late]


class Layers:
    """Builds the layers of one recipe. Argument `load` is the tokens of the hottest EP rank over the mean."""

    def __init__(self, recipe: Recipe, rates: Rates) -> None:
        self.parts = parts = Parts(recipe, rates)
        self.mixers, self.feeds, self.routed = Mixers(parts), Feeds(parts), Routed(parts)
        # cached: mixers do not depend on the load
        self.mixer, self.mixer_backward = cache(self.mixers.mixer), cache(self._mixer_backward)
        self.recipe, self.rates, self.model = parts.recipe, parts.rates, parts.model
        self.tp, self.etp, self.tokens, self.parted, self.query, self.key, self.value = (
            parts.tp,
            parts.etp,
            parts.tokens,
            parts.parted,
            parts.query,
            parts.key,
            parts.value,
        )

    def with_copies(self, segment: Segment, kind: Kind, load: float, *, back: bool) -> Segment:
        """Returns a segment with the copies of a layer's offloaded tensors to the host (`back`: from it) concurrent
        with its longest part."""
        gb = self._offloaded_gb(kind, load)
        if not gb:
            return segment
        kernel = "copy_back" if back else "copy_out"
        copy = Op(kernel=kernel, us=self.rates.copy_us(gb), stream=Stream.COPY, launches=2, gb=gb, ranges=("offload",))
        runs = [(alone, list(run)) for alone, run in groupby(segment, key=lambda item: isinstance(item, Op))]
        longest = max((run for alone, run in runs if alone), key=_length_us, default=[])
        return [
            item
            for alone, run in runs
            for item in ([Concurrent([copy], [op for op in run if isinstance(op, Op)])] if run is longest else run)
        ]

    def _offloaded_gb(self, kind: Kind, load: float) -> float:
        hidden, entries = float(self.model.hidden_size), 0.0
        if self.parts.on("fine_grained_activation_offloading"):
            moe = kind.feed == "moe"
            rows, width = self.routed.rows(load), expert_width(self.model) / self.etp
            of = {
                "attn_norm": self.parted * hidden,
                "qkv_linear": self.parted * hidden,
                "core_attn": self.tokens * (2 * self.query + self.key + self.value) / self.tp,
                "attn_proj": self.tokens * self.query / self.tp,
                "mlp_norm": self.parted * hidden,
                "expert_fc1": rows * self.routed.seen_width * moe,
                "moe_act": rows * width * (mlp_matrices(self.model) - 1) * moe,
                "fused_group_mlp": rows * (self.routed.seen_width + 2 * width) * moe,
            }
            entries += sum(of[module] for module in self.recipe.knob("offload_modules") or ())
        if self.parts.on("cpu_offloading"):
            share = min(1.0, float(self.recipe.knob("cpu_offloading_num_layers")) / self.model.num_layers)
            entries += share * 12 * self.parted * hidden
        return entries * 2 / GIGA

    def forward(self, kind: Kind, load: float) -> Segments:
        if kind.feed != "moe":
            before = [*self.mixer(kind), *(self.feeds.feed_forward(kind) if kind.feed == "dense" else ())]
            return Segments(before=self.with_copies(before, kind, load, back=False), send=(), middle=(), back=())
        shared = self.feeds.shared(kind)
        apart = self.parts.on("moe_shared_expert_overlap") and shared
        before = [
            *self.mixer(kind),
            *self.routed.router(kind),
            *(() if apart else shared),
            *self.routed.permute(load),
        ]
        dispatch, combine = self.routed.exchange("dispatch", load), self.routed.exchange("combine", load)
        return Segments(
            before=self.with_copies(before, kind, load, back=False),
            send=[Concurrent(dispatch, shared)] if apart and dispatch else [*dispatch, *(shared if apart else ())],
            middle=self.routed.experts(kind, load),
            back=combine,
            after=self.routed.unpermute(load),
        )

    def backward(self, kind: Kind, load: float) -> Segments:
        """Returns the backward segments; the operations that recompute repeats come first."""
        again = inside(self.again(kind, load), "recompute")
        late = self.parts.on("delay_wgrad_compute")
        if kind.feed != "moe":
            backwards = [*self._feed_backward(kind), *self.mixer_backward(kind)]
            before = self.with_copies([*again, *backwards], kind, load, back=True)
            return Segments(before=before, send=(), middle=(), back=())
        before = [*again, *self._reversed(self.routed.unpermute(load))]
        data, weights = self.routed.experts_backward(kind, load)
        dispatch = self._reversed(self.routed.exchange("dispatch", load)[-1:])
        concurrent = self.parts.on("overlap_dispatch_backward_with_experts_wgrad") and dispatch
        tail = [
            *self._reversed(self.routed.permute(load)),
            *self._reversed(self.feeds.shared(kind), twice=True),
            *self._reversed(self.routed.router(kind), twice=True),
            *self.mixer_backward(kind),
        ]
        return Segments(
            before=before,
            send=self._reversed(self.routed.exchange("combine", load)),
            middle=data if late or concurrent else [*data, *weights],
            back=[Concurrent(dispatch, weights)] if concurrent and not late else dispatch,
            after=self.with_copies(tail, kind, load, back=True),
            late=weights if late else (),
        )

    def again(self, kind: Kind, load: float) -> list[Op | Concurrent]:
        """Returns the forward operations that recompute repeats, in order."""
        granularity = self.recipe.knob("recompute_granularity")
        if granularity is None:
            return []
        if granularity == "full":
            return self.forward(kind, load).all if kind.again else []
        written = self.recipe.knob("recompute_modules")
        modules = ("core_attn",) if written is None else written
        return [op for module in modules for op in self._again(module, kind, load)]

    def _again(self, module: str, kind: Kind, load: float) -> Segment:
        moe = kind.feed == "moe"
        attends = mixers()[kind.mixer].attends
        latent = kind.mixer in PROJECTED and self.model.multi_latent_attention
        found: dict[str, Callable[[], Segment]] = {
            "core_attn": lambda: [self.mixers.core(kind, backward=False)] if attends else [],
            "layernorm": lambda: [self.parts.norm("attn"), self.parts.norm("mlp")],
            "mla_up_proj": lambda: self.mixers.up_projections(kind) if latent else [],
            "moe_act": lambda: (
                self.routed.activation(load, self.parts.launches("moe", kind), backward=False) if moe else []
            ),
            "mlp": lambda: self.feeds.feed_forward(kind) if kind.feed == "dense" else [],
            "moe": lambda: self._moe_again(kind, load) if moe else [],
            "shared_experts": lambda: self.feeds.shared(kind) if moe else [],
        }
        return found[module]()

    def _moe_again(self, kind: Kind, load: float) -> Segment:
        segments = self.forward(Kind("none", "moe", wide=kind.wide), load)
        return [op for op in segments.all if not (isinstance(op, Op) and op.kernel == "residual")]

    def _mixer_backward(self, kind: Kind) -> list[Op | Concurrent]:
        if kind.mixer == "none":
            return []
        ops: list[Op | Concurrent] = []
        for item in reversed(self.mixer(kind)):
            ops += self._backward_of(item, kind)
        return ops

    def _feed_backward(self, kind: Kind) -> list[Op | Concurrent]:
        ops: list[Op | Concurrent] = []
        for item in reversed(self.feeds.feed_forward(kind) if kind.feed == "dense" else []):
            ops += self._backward_of(item, kind)
        return ops

    def _backward_of(self, item: Op | Concurrent, kind: Kind) -> list[Op | Concurrent]:
        if isinstance(item, Concurrent):
            second = [b for op in item.second for b in self._one_backward(op, kind)]
            return [Concurrent([_with_gradients(op) for op in item.first], second)]
        return [*self._one_backward(item, kind)]

    def _one_backward(self, op: Op, kind: Kind) -> list[Op]:
        """Returns the backward of an operation: GEMMs twice, attention at its own rate, memory-bound work 1.6 times,
        collectives once."""
        launches = op.launches * BACKWARD_LAUNCHES
        if op.kernel == "attention_forward":
            whole, share = self.mixers.core(kind, backward=True), op.us / self.mixers.core(kind, backward=False).us
            return [replace(whole, us=share * whole.us, launches=share * whole.launches, ranges=op.ranges)]
        if op.kernel in ("gemm", "scan"):
            half = replace(op, us=op.us, launches=launches / 2)
            return [half, half]
        if op.stream is not Stream.COMPUTE:
            return [op]
        return [replace(op, us=1.6 * op.us, launches=launches / 2, kernel=BACKWARD_KERNELS.get(op.kernel, op.kernel))]

    def _reversed(self, ops: Segment, *, twice: bool = False) -> list[Op]:
        """Returns the backward of a plain chain in reverse order; `twice`: GEMMs have weight gradients too, and other
        compute takes 1.6 times as long as forward."""
        found = []
        for op in reversed(ops):
            assert isinstance(op, Op)
            more = 2.0 if twice and op.kernel == "gemm" else 1.6 if twice else 1.0
            more = more if op.stream is Stream.COMPUTE else 1.0
            found.append(replace(op, us=more * op.us, launches=op.launches * BACKWARD_LAUNCHES / 2, sync=False))
        return found


def _with_gradients(op: Op) -> Op:
    """Returns an operation of a concurrent chain in backward: in a ring, keys and values travel with their
    gradients."""
    return replace(op, us=2 * op.us, gb=2 * op.gb) if op.stream is Stream.CP else op


def _length_us(segment: Segment) -> float:
    return sum(item.us for item in segment if isinstance(item, Op))
