"""The operations of one layer for one micro batch on one rank, in the segments that EP overlap shifts.

Sizes are counted on Megatron-Core's modules with Transformer Engine; launches are calls of the host, Python included,
as multiples of a plain launch. What a knob does to a layer is said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from trainer.engines.simulated.ops import Beside, Op, Segment, Stream, inside
from trainer.engines.simulated.rates import GIGA, Rates
from trainer.engines.simulated.routing import Copies, copies_of
from trainer.measured.links import copies as copies_sent
from trainer.model.flops import MIXERS as MIXER_FLOPS
from trainer.model.parameters import attention_channels, dense_width, expert_width, matrices
from trainer.recipe.layout import layout_of
from trainer.recipe.schema import Recipe

GRAPHED = 0.1  # launches left where graphs capture a module
WHOLE_GRAPH = 0.02  # and where they capture the iteration
ROUTER_KERNELS = {True: 7, False: 22}  # with and without moe_router_fusion
ROUTER_LAUNCHES = {True: 13.0, False: 31.0}  # effects E054: 31 kernels of 72 are left
PERMUTE_LAUNCHES = {True: 8.0, False: 20.0}
BACKWARD_LAUNCHES = 1.1  # autograd calls more, and from C++
FP8_LAUNCHES = 1.5
LOCAL_LAUNCHES = 1.4  # with Megatron-Core's own layers instead of Transformer Engine's fused ones
UNFUSED_PASSES = 5.0  # over the scores of attention that no kernel keeps on chip
FULL_SMS = {"deepep": 20.0, "hybridep": 16.0, "ncclep": 16.0}  # that fill the link


class Kind(NamedTuple):
    """What tells layers apart: what mixes tokens and what feeds forward, a window, BF16 beside FP8, and whether what
    full recompute drops is done again."""

    mixer: str
    feed: str
    windowed: bool = False
    wide: bool = False
    again: bool = True


@dataclass(frozen=True, kw_only=True)
class Segments:
    """A layer in the order of its pass; what is absent is empty. `late`: weight gradients that may come later."""

    before: Segment
    send: Segment
    middle: Segment
    back: Segment
    after: Segment = ()
    late: Segment = ()

    @property
    def all(self) -> list[Op | Beside]:
        return [*self.before, *self.send, *self.middle, *self.back, *self.after, *self.late]


class Layers:
    """Builds the layers of one recipe. load: tokens of the hottest EP rank over the mean."""

    def __init__(self, recipe: Recipe, rates: Rates) -> None:
        self.recipe, self.rates, self.model = recipe, rates, recipe.architecture
        layout = layout_of(recipe)
        self.tp, self.cp, self.ep, self.etp = float(layout.tp), float(layout.cp), layout.ep, float(layout.etp)
        training = recipe.training
        self.tokens = training.micro_batch_size * training.seq_length / self.cp
        self.parted = self.tokens / (self.tp if recipe.knob("sequence_parallel") or self.tp == 1 else 1.0)
        self.query, self.key, self.value = attention_channels(self.model)
        self._graphed = self._captured()

    # --- offload ------------------------------------------------------------------------------------------
    def beside_copies(self, segment: Segment, kind: Kind, load: float, *, back: bool) -> Segment:
        """A segment with what is offloaded of a layer copied beside it, to the host or back."""
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
            for item in ([Beside([copy], [op for op in run if isinstance(op, Op)])] if run is longest else run)
        ]

    def _offloaded_gb(self, kind: Kind, load: float) -> float:
        hidden, entries = float(self.model.hidden_size), 0.0
        if self._on("fine_grained_activation_offloading"):
            moe = kind.feed == "moe"
            rows, width = self._rows(load), expert_width(self.model) / self.etp
            of = {
                "attn_norm": self.parted * hidden,
                "qkv_linear": self.parted * hidden,
                "core_attn": self.tokens * (2 * self.query + self.key + self.value) / self.tp,
                "attn_proj": self.tokens * self.query / self.tp,
                "mlp_norm": self.parted * hidden,
                "expert_fc1": rows * self._seen_width * moe,
                "moe_act": rows * width * (matrices(self.model) - 1) * moe,
                "fused_group_mlp": rows * (self._seen_width + 2 * width) * moe,
            }
            entries += sum(of[module] for module in self.recipe.knob("offload_modules") or ())
        if self._on("cpu_offloading"):
            share = min(1.0, float(self.recipe.knob("cpu_offloading_num_layers")) / self.model.num_layers)
            entries += share * 12 * self.parted * hidden
        return entries * 2 / GIGA

    # --- forward ------------------------------------------------------------------------------------------
    def forward(self, kind: Kind, load: float) -> Segments:
        if kind.feed != "moe":
            before = [*self.mixer(kind), *(self.feed_forward(kind) if kind.feed == "dense" else ())]
            return Segments(before=self.beside_copies(before, kind, load, back=False), send=(), middle=(), back=())
        shared = self.shared(kind)
        apart = self._on("moe_shared_expert_overlap") and shared
        before = [*self.mixer(kind), *self.router(kind), *(() if apart else shared), *self.permute(load)]
        dispatch, combine = self.exchange("dispatch", load), self.exchange("combine", load)
        return Segments(
            before=self.beside_copies(before, kind, load, back=False),
            send=[Beside(dispatch, shared)] if apart and dispatch else [*dispatch, *(shared if apart else ())],
            middle=self.experts(kind, load),
            back=combine,
            after=self.unpermute(load),
        )

    def mixer(self, kind: Kind) -> list[Op | Beside]:
        if kind.mixer == "none":
            return []
        if kind.mixer != "attention":
            return self._linear_mixer(kind)
        hidden, rates, launches = self.model.hidden_size, self.rates, self._launches("attn", kind)
        ops: list[Op | Beside] = [
            self._norm("attn"),
            *self._around_tp(self._tp("AllGather", self.tokens), self._projections(kind)),
            Op(
                kernel="rope",
                us=rates.memory_us(2 * self.tokens * (self.query + self.key) / self.tp),
                launches=launches(6),
            ),
            *self._with_cp(self.core(kind, backward=False)),
            *self._around_tp(
                self._tp("ReduceScatter", self.tokens),
                [self._gemm("proj", self._out_width() * hidden / self.tp, launches(8), kind)],
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
            kernel=name, us=us, launches=self._launches("attn", kind)(12 * (BACKWARD_LAUNCHES if backward else 1))
        )

    def feed_forward(self, kind: Kind) -> list[Op | Beside]:
        width, hidden, launches = dense_width(self.model) / self.tp, self.model.hidden_size, self._launches("mlp", kind)
        gates = matrices(self.model) - 1
        ops: list[Op | Beside] = [
            self._norm("mlp"),
            *self._around_tp(
                self._tp("AllGather", self.tokens), [self._gemm("fc1", gates * width * hidden, launches(8), kind)]
            ),
            Op(kernel="activation", us=self.rates.memory_us(self.tokens * (gates + 1) * width), launches=launches(3)),
            *self._around_tp(
                self._tp("ReduceScatter", self.tokens), [self._gemm("fc2", width * hidden, launches(8), kind)]
            ),
            Op(kernel="residual", us=self.rates.memory_us(3 * self.parted * hidden), launches=launches(3)),
        ]
        return inside(ops, "mlp")

    def router(self, kind: Kind) -> list[Op]:
        experts, hidden = self.model.num_moe_experts or 1, self.model.hidden_size
        fused = self._on("moe_router_fusion")
        launches, prepare = self._launches("moe_router", kind), self._launches("moe_preprocess", kind)
        slower = 1.6 if self.recipe.knob("moe_router_dtype") == "fp64" else 1.0
        small = ROUTER_KERNELS[fused]
        return inside_ops(
            [
                self._norm("moe_router"),
                Op(
                    kernel="gemm",
                    us=slower * self.rates.gemm_us(self.parted, hidden * experts, wide=True),
                    launches=launches(5),
                ),
                Op(
                    kernel="router",
                    us=small * 2.5 + self.rates.memory_us(3 * self.parted * experts),
                    launches=launches(ROUTER_LAUNCHES[fused]),
                ),
                Op(kernel="preprocess", us=12.0, launches=prepare(15), sync=self._waits_for_counts()),
            ],
            "router",
        )

    def shared(self, kind: Kind) -> list[Op]:
        width, hidden = (self.model.moe_shared_expert_intermediate_size or 0) / self.tp, self.model.hidden_size
        if not width:
            return []
        gates, launches = matrices(self.model) - 1, self._launches("moe_router", kind)
        tokens = self.tokens
        return inside_ops(
            [
                self._gemm("fc1", gates * width * hidden, launches(8), kind),
                Op(kernel="activation", us=self.rates.memory_us(tokens * (gates + 1) * width), launches=launches(3)),
                self._gemm("fc2", width * hidden, launches(8), kind),
            ],
            "shared_experts",
        )

    def permute(self, load: float) -> list[Op]:
        """Tokens sorted by where they go; HybridEP does it inside its own kernel where it is told to."""
        if self.dispatcher == "hybridep" and self._on("moe_permute_fusion_into_hybridep"):
            return []
        entries = self.parted * self._seen_width * (self.topk + 1 if self.dispatcher == "alltoall" else 1.0)
        return [self._permutation(entries, "moe_preprocess")]

    def exchange(self, way: str, load: float) -> list[Op]:
        """Dispatch or combine over the EP group, as long as its hottest rank takes."""
        if self.ep == 1 and self.etp == 1:
            return []
        us, gb = self._exchange_us(load)
        if self.ep == 1:
            us, gb = 0.0, 0.0
        ops = [
            Op(
                kernel=f"{self.dispatcher}_{way}",
                us=us,
                launches=self._launches("moe", None)(10),
                stream=Stream.EP,
                sms=self._exchange_sms(),
                gb=gb,
                ranges=(way,),
            )
        ]
        if way == "dispatch" and self.dispatcher != "alltoall":
            notify = self.rates.values["link.notify"] * self.rates.machine.links.latency
            counts = Op(
                kernel=f"{self.dispatcher}_notify",
                us=notify * (3.0 if self.rates.fabric(self.ep * self.etp) == "network" else 1.0),
                launches=self._launches("moe_preprocess", None)(4),
                stream=Stream.EP,
                sms=0.0,
                sync=self._waits_for_counts(),
                ranges=(way,),
            )
            ops.insert(0, counts)
        return ops if us else []

    def experts(self, kind: Kind, load: float) -> list[Op | Beside]:
        launches = self._launches("moe", kind)
        sort = self._permutation(2 * self._rows(load) * self._seen_width, "moe") if self._sorts() else None
        more = self.rates.values["host.expert"] * self.local_experts * (not self._fused_mlp())
        ops = [
            *((sort,) if sort else ()),
            *self._etp("AllGather", load),
            *self._quantized(self._rows(load) * self._seen_width, routed=True),
            self._grouped("fc1", load, matrices(self.model) - 1, launches(10 + more)),
            *self._activation(load, launches, backward=False),
            self._grouped("fc2", load, 1, launches(10 + more)),
            *self._etp("ReduceScatter", load),
            *((sort,) if sort else ()),
        ]
        return inside(ops, "experts")

    def unpermute(self, load: float) -> list[Op]:
        hidden = self.model.hidden_size
        copies = self.topk + 1 if self.dispatcher == "alltoall" else 2.0
        return [
            self._permutation(self.parted * self._seen_width * copies, "moe"),
            Op(
                kernel="residual",
                us=self.rates.memory_us(3 * self.parted * hidden),
                launches=self._launches("moe", None)(3),
            ),
        ]

    # --- backward -----------------------------------------------------------------------------------------
    def backward(self, kind: Kind, load: float) -> Segments:
        """Recompute included: in full before everything, by module where the module's gradient begins."""
        again = inside(self.again(kind, load), "recompute")
        late = self._on("delay_wgrad_compute")
        if kind.feed != "moe":
            backwards = [*self._feed_backward(kind), *self._mixer_backward(kind)]
            before = self.beside_copies([*again, *backwards], kind, load, back=True)
            return Segments(before=before, send=(), middle=(), back=())
        before = [*again, *self._reversed(self.unpermute(load))]
        data, weights = self._experts_backward(kind, load)
        dispatch = self._reversed(self.exchange("dispatch", load)[-1:])
        beside = self._on("overlap_dispatch_backward_with_experts_wgrad") and dispatch
        tail = [
            *self._reversed(self.permute(load)),
            *self._reversed(self.shared(kind), twice=True),
            *self._reversed(self.router(kind), twice=True),
            *self._mixer_backward(kind),
        ]
        return Segments(
            before=before,
            send=self._reversed(self.exchange("combine", load)),
            middle=data if late or beside else [*data, *weights],
            back=[Beside(dispatch, weights)] if beside and not late else dispatch,
            after=self.beside_copies(tail, kind, load, back=True),
            late=weights if late else (),
        )

    def again(self, kind: Kind, load: float) -> list[Op | Beside]:
        """What recompute does over, as the forward pass does it."""
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
        attends = kind.mixer == "attention"
        found: dict[str, Callable[[], Segment]] = {
            "core_attn": lambda: [self.core(kind, backward=False)] if attends else [],
            "layernorm": lambda: [self._norm("attn"), self._norm("mlp")],
            "mla_up_proj": lambda: self._up_projections(kind) if attends and self.model.multi_latent_attention else [],
            "moe_act": lambda: self._activation(load, self._launches("moe", kind), backward=False) if moe else [],
            "mlp": lambda: self.feed_forward(kind) if kind.feed == "dense" else [],
            "moe": lambda: self._moe_again(kind, load) if moe else [],
            "shared_experts": lambda: self.shared(kind) if moe else [],
        }
        return found[module]()

    def _moe_again(self, kind: Kind, load: float) -> Segment:
        segments = self.forward(Kind("none", "moe", wide=kind.wide), load)
        return [op for op in segments.all if not (isinstance(op, Op) and op.kernel == "residual")]

    def _mixer_backward(self, kind: Kind) -> list[Op | Beside]:
        if kind.mixer == "none":
            return []
        ops: list[Op | Beside] = []
        for item in reversed(self.mixer(kind)):
            ops += self._backward_of(item, kind)
        return ops

    def _feed_backward(self, kind: Kind) -> list[Op | Beside]:
        ops: list[Op | Beside] = []
        for item in reversed(self.feed_forward(kind) if kind.feed == "dense" else []):
            ops += self._backward_of(item, kind)
        return ops

    def _backward_of(self, item: Op | Beside, kind: Kind) -> list[Op | Beside]:
        if isinstance(item, Beside):
            second = [b for op in item.second for b in self._one_backward(op, kind)]
            return [Beside(list(item.first), second)]
        return [*self._one_backward(item, kind)]

    def _one_backward(self, op: Op, kind: Kind) -> list[Op]:
        """Products go twice, attention by its own rate, memory-bound work moves more, collectives once more."""
        launches = op.launches * BACKWARD_LAUNCHES
        if op.kernel == "attention_forward":
            return [_moved(self.core(kind, backward=True), op.ranges)]
        if op.kernel in ("gemm", "scan"):
            half = replace(op, us=op.us, launches=launches / 2)
            return [half, half]
        if op.stream is not Stream.COMPUTE:
            return [op]
        return [replace(op, us=1.6 * op.us, launches=launches / 2, kernel=BACKWARD_KERNELS.get(op.kernel, op.kernel))]

    def _reversed(self, ops: Segment, *, twice: bool = False) -> list[Op]:
        """The gradients of a plain chain, last first; `twice` where products have weights."""
        found = []
        for op in reversed(ops):
            assert isinstance(op, Op)
            more = 2.0 if twice and op.kernel == "gemm" else 1.6 if twice else 1.0
            more = more if op.stream is Stream.COMPUTE else 1.0
            found.append(replace(op, us=more * op.us, launches=op.launches * BACKWARD_LAUNCHES / 2, sync=False))
        return found

    def _experts_backward(self, kind: Kind, load: float) -> tuple[list[Op | Beside], list[Op]]:
        """(gradients of what came in, gradients of weights)."""
        launches = self._launches("moe", kind)
        sort = [self._permutation(2 * self._rows(load) * self._seen_width, "moe")] if self._sorts() else []
        gates = matrices(self.model) - 1
        width = expert_width(self.model) / self.etp
        data: list[Op | Beside] = [
            *sort,
            *self._etp("AllGather", load),
            *self._quantized(self._rows(load) * self._seen_width, routed=True),
            self._grouped("fc2", load, 1, launches(8)),
            *self._activation(load, launches, backward=True),
            *self._quantized(self._rows(load) * width * gates, routed=True),
            self._grouped("fc1", load, gates, launches(8)),
            *self._etp("ReduceScatter", load),
            *sort,
        ]
        weights = [self._grouped("fc2", load, 1, launches(6)), self._grouped("fc1", load, gates, launches(6))]
        return inside(data, "experts"), inside_ops(weights, "experts")

    # --- pieces -------------------------------------------------------------------------------------------
    @cached_property
    def dispatcher(self) -> str:
        kind = str(self.recipe.knob("moe_token_dispatcher_type"))
        return str(self.recipe.knob("moe_flex_dispatcher_backend")) if kind == "flex" else kind

    @cached_property
    def topk(self) -> float:
        return float(self.model.moe_router_topk)

    @cached_property
    def local_experts(self) -> float:
        return max(1.0, (self.model.num_moe_experts or 1) / self.ep)

    @cached_property
    def _seen_width(self) -> float:
        """Channels of a token on its way to the experts."""
        return float(self.model.moe_latent_size or self.model.hidden_size)

    def _rows(self, load: float) -> float:
        """Token copies on the hottest rank of its experts, over their TP group."""
        rows = self.parted * self.etp * self.topk * load
        if self._on("moe_pad_expert_input_to_capacity"):
            rows = self.parted * self.etp * self.topk * float(self.recipe.knob("moe_expert_capacity_factor") or 1.0)
        if self._on("moe_router_padding_for_quantization") and self.rates.narrow:
            rows += 16.0 * self.local_experts
        return rows

    def _grouped(self, name: str, load: float, gates: int, launches: float) -> Op:
        width = expert_width(self.model) / self.etp
        us = self.rates.grouped_us(
            self._rows(load),
            self.local_experts,
            gates * self._seen_width * width,
            width,
            grouped=self._on("moe_grouped_gemm"),
        )
        apart = 1.0 if self._on("moe_grouped_gemm") else self.local_experts
        return Op(kernel="grouped_gemm", us=us, launches=launches * (1.0 if apart == 1 else 1 + 0.5 * apart))

    def _activation(self, load: float, launches: Callable[[float], float], *, backward: bool) -> list[Op]:
        width, gates = expert_width(self.model) / self.etp, matrices(self.model) - 1
        passes = 1.6 if backward else 1.0
        biased = 8.0 if self.model.add_bias_linear else 0.0  # bias, clamp and gate as kernels of their own
        us = (
            self.rates.memory_us(self._rows(load) * ((gates + 1) * width * passes + biased * width))
            * self._fused_left()
        )
        name = "activation_backward" if backward else "activation"
        return [
            Op(kernel=name, us=us, launches=launches(4)),
            *self._quantized(self._rows(load) * width, routed=True),
        ]

    def _quantized(self, entries: float, *, routed: bool = False) -> list[Op]:
        us = self.rates.quantize_us(entries) * (self._fused_left() if routed else 1.0)
        return [Op(kernel="quantize", us=us, launches=self._launches("moe", None)(2))] if us else []

    def _fused_mlp(self) -> bool:
        fused = self.rates.release.fused_grouped_mlp or self._on("use_transformer_engine_op_fuser")
        return bool(fused and self.rates.architecture == "blackwell" and self.recipe.training.precision == "mxfp8")

    def _fused_left(self) -> float:
        return self.rates.values["quantize.fused"] if self._fused_mlp() else 1.0

    def _permutation(self, entries: float, scope: str) -> Op:
        fused = self._on("moe_permute_fusion")
        us = self.rates.memory_us(entries, passes=self.rates.values["memory.passes"] * (1.0 if fused else 1.5))
        return Op(kernel="permute", us=us, launches=self._launches(scope, None)(PERMUTE_LAUNCHES[fused]))

    def _sorts(self) -> bool:
        """Whether arriving copies must be brought into the order of several experts."""
        return self.dispatcher in ("alltoall", "deepep") and self.local_experts > 1

    def _norm(self, scope: str) -> Op:
        us = self.rates.memory_us(2.5 * self.parted * self.model.hidden_size)
        return Op(kernel="norm", us=us, launches=self._launches(scope, None)(4))

    def _gemm(self, name: str, weights: float, launches: float, kind: Kind | None) -> Op:
        wide = kind is not None and kind.wide
        us = self.rates.gemm_us(self.tokens, weights, wide=wide)
        width = weights / self.model.hidden_size
        us += 0.0 if wide else self.rates.quantize_us(self.tokens * min(width, self.model.hidden_size))
        return Op(kernel="gemm", us=us, launches=launches)

    def _out_width(self) -> float:
        return self.value if self.model.multi_latent_attention else self.query

    def _projections(self, kind: Kind) -> list[Op]:
        model, launches = self.model, self._launches("attn", kind)
        if not model.multi_latent_attention:
            width = self.query * (2 if model.attention_output_gate else 1) + self.key + self.value
            return [self._gemm("qkv", model.hidden_size * width / self.tp, launches(8), kind)]
        q_rank, kv_rank, rope = model.q_lora_rank or 0, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
        down = model.hidden_size * (q_rank + kv_rank + rope)
        return [
            self._gemm("down", down / self.tp, launches(10), kind),
            Op(
                kernel="norm",
                us=self.rates.memory_us(2 * self.tokens * (q_rank + kv_rank) / self.tp),
                launches=launches(5),
            ),
            *self._up_projections(kind),
        ]

    def _up_projections(self, kind: Kind) -> list[Op]:
        model, launches = self.model, self._launches("attn", kind)
        q_rank, kv_rank = model.q_lora_rank or model.hidden_size, model.kv_lora_rank or 0
        rope = model.num_attention_heads * (model.qk_pos_emb_head_dim or 0)
        up = q_rank * self.query + kv_rank * (self.key - rope + self.value)
        entries = self.tokens * (self.query + self.key + self.value) / self.tp
        return [
            self._gemm("up", up / self.tp, launches(12), kind),
            Op(kernel="residual", us=self.rates.memory_us(entries), launches=launches(4)),
        ]

    def _linear_mixer(self, kind: Kind) -> list[Op | Beside]:
        """Mamba and gated delta net: their products, and scans bound by memory."""
        launches = self._launches("attn", kind)
        weights = MIXER_FLOPS[kind.mixer](self.model, 0.0) / self.tp
        hidden = self.model.hidden_size
        ops = [
            self._norm("attn"),
            *self._around_tp(self._tp("AllGather", self.tokens), [self._gemm("in", 0.7 * weights, launches(10), kind)]),
            Op(kernel="scan", us=self.rates.memory_us(12 * self.tokens * hidden / self.tp), launches=launches(25)),
            *self._around_tp(
                self._tp("ReduceScatter", self.tokens), [self._gemm("out", 0.3 * weights, launches(8), kind)]
            ),
            Op(kernel="residual", us=self.rates.memory_us(3 * self.parted * hidden), launches=launches(3)),
        ]
        return inside(ops, "attention")

    def _seen(self, kind: Kind) -> float:
        length = float(self.recipe.training.seq_length)
        window = self.model.window_size[0] if kind.windowed and self.model.window_size else 0
        return window - window * window / (2 * length) if 0 < window < length else length / 2

    # --- communication ------------------------------------------------------------------------------------
    def _tp(self, name: str, tokens: float) -> list[Op]:
        if self.tp == 1:
            return []
        gb = tokens * self.model.hidden_size * 2 * (self.tp - 1) / self.tp / GIGA
        us = self.rates.ring_us(gb, self.tp)
        return [Op(kernel=name, us=us, stream=Stream.TP, sms=self.rates.collective_sms(), gb=gb, launches=2)]

    def _etp(self, name: str, load: float) -> list[Op]:
        if self.etp == 1:
            return []
        gb = self.parted * self.topk * load * self._seen_width * 2 * (self.etp - 1) / GIGA
        us = self.rates.ring_us(gb, self.etp)
        return [Op(kernel=name, us=us, stream=Stream.TP, sms=self.rates.collective_sms(), gb=gb, launches=2)]

    def _around_tp(self, collective: list[Op], products: list[Op]) -> list[Op | Beside]:
        """A collective before (gather) or after (scatter) products; under overlap a part of it runs beside them."""
        if not collective:
            return list(products)
        one = collective[0]
        if not self._on("tp_comm_overlap"):
            return [one, *products] if one.kernel == "AllGather" else [*products, one]
        share = self.rates.values["overlap.tp"]
        hidden, left = replace(one, us=share * one.us), replace(one, us=(1 - share) * one.us, launches=0)
        return [Beside([hidden], products), left]

    def _with_cp(self, core: Op) -> list[Op | Beside]:
        if self.cp == 1:
            return [core]
        kind = self.recipe.knob("cp_comm_type") or "p2p"
        stride = self.tp
        kv = self.tokens * (self.key + self.value) / self.tp * 2 / GIGA
        if kind == "a2a":
            every = self.tokens * (2 * self.query + self.key + self.value) / self.tp * 2 / GIGA
            us = self.rates.ring_us(every * (self.cp - 1) / self.cp / 2, self.cp, stride=stride)
            half = Op(
                kernel="SendRecv", us=us, stream=Stream.CP, sms=self.rates.collective_sms(), gb=every / 2, launches=3
            )
            return [half, core, half]
        if kind == "all_gather":
            us = self.rates.ring_us(kv * (self.cp - 1), self.cp, stride=stride)
            gather = Op(kernel="AllGather", us=us, stream=Stream.CP, sms=self.rates.collective_sms(), gb=kv, launches=3)
            return [gather, core]
        us = self.rates.ring_us(kv * (self.cp - 1), self.cp, stride=stride) + (self.cp - 2) * self.rates.latency_us(
            "nvlink"
        )
        ring = Op(
            kernel="SendRecv",
            us=us,
            stream=Stream.CP,
            sms=0.5 * self.rates.collective_sms(),
            gb=kv,
            launches=2 * self.cp,
        )
        return [Beside([ring], [core])]

    def _exchange_us(self, load: float) -> tuple[float, float]:
        """(microseconds, GB out of a rank) of one dispatch or combine."""
        rates, library = self.rates, self.dispatcher
        near = max(1.0, min(self.ep, rates.domain / self.etp))
        domains = max(1, round(self.ep / near))
        token_gb = self.parted * self._seen_width * 2 / GIGA
        sent = copies_sent().get(library, "every")
        where = self._copies(domains)
        if sent == "all":
            inside_gb, across_gb = token_gb * (near - 1), token_gb * (self.ep - near)
        elif sent == "every":
            inside_gb = token_gb * self.topk * (near - 1) / self.ep
            across_gb = token_gb * self.topk * (1 - near / self.ep)
        else:
            inside_gb = token_gb * where.ranks * (near - 1) / self.ep
            across_gb = token_gb * where.domains * (1 - 1 / domains)
        within = rates.latency_us("nvlink") + rates.send_us(inside_gb * load, "nvlink", library) if near > 1 else 0.0
        between = (
            rates.latency_us("network") + rates.send_us(across_gb * load, "network", library) if domains > 1 else 0.0
        )
        return max(within, between) / self._sm_share(), inside_gb + across_gb

    def _copies(self, domains: int) -> Copies:
        model = self.model
        return copies_of(
            model.num_moe_experts or 1,
            model.moe_router_topk,
            model.moe_router_num_groups,
            model.moe_router_group_topk,
            self.ep,
            domains,
        )

    def _own_sms(self) -> float | None:
        knob = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}.get(self.dispatcher)
        return float(self.recipe.knob(knob)) if knob else None

    def _sm_share(self) -> float:
        """Of its bandwidth that a library reaches with the SMs it is given."""
        given, full = self._own_sms(), FULL_SMS.get(self.dispatcher, 1.0)
        return 1.0 if given is None else min(1.0, given / full) ** 0.7

    def _exchange_sms(self) -> float:
        given = self._own_sms()
        return self.rates.collective_sms() if given is None else given / self.rates.sms

    def _waits_for_counts(self) -> bool:
        """Whether the host must know how many tokens come before it can go on."""
        recipe = self.recipe
        static = recipe.knob("moe_pad_expert_input_to_capacity") or recipe.knob("moe_paged_stash")
        whole = recipe.knob("cuda_graph_impl") == "full_iteration"
        return not (static or whole or recipe.knob("moe_expert_rank_capacity_factor"))

    # --- host ---------------------------------------------------------------------------------------------
    def _on(self, knob: str) -> bool:
        return bool(self.recipe.knob(knob))

    def _captured(self) -> Callable[[str], float]:
        """Of a module's launches, those that are left."""
        kind, scope = self.recipe.knob("cuda_graph_impl"), self.recipe.knob("cuda_graph_scope") or ()
        if kind == "none":
            return lambda _: 1.0
        if kind == "full_iteration" or "full_iteration" in scope:
            return lambda _: WHOLE_GRAPH
        if not scope:  # whole layers, as far as shapes are static
            padded = self._on("moe_pad_expert_input_to_capacity")
            return lambda module: GRAPHED if padded or module in ("attn", "mlp", "moe_router") else 1.0
        return lambda module: GRAPHED if module in scope or (module == "moe_router" and "moe" in scope) else 1.0

    def _launches(self, scope: str, kind: Kind | None) -> Callable[[float], float]:
        left = self._graphed(scope)
        narrow = FP8_LAUNCHES if self.rates.narrow and not (kind and kind.wide) else 1.0
        local = LOCAL_LAUNCHES if self.recipe.knob("transformer_impl") == "local" else 1.0
        return lambda count: count * left * narrow * local


BACKWARD_KERNELS = {"norm": "norm_backward", "activation": "activation_backward"}


def _length_us(segment: Segment) -> float:
    return sum(item.us for item in segment if isinstance(item, Op))


def inside_ops(ops: list[Op], *ranges: str) -> list[Op]:
    return [_moved(op, ranges) for op in ops]


def _moved(op: Op, ranges: tuple[str, ...]) -> Op:
    return replace(op, ranges=(*ranges, *op.ranges))
