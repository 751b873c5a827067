"""The routed experts of a layer: router, permutation, dispatch and combine, grouped GEMMs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from trainer.engines.simulated.ops import Concurrent, Op, Stream, inside, within
from trainer.engines.simulated.parts import Kind, Parts
from trainer.engines.simulated.rates import GIGA
from trainer.engines.simulated.routing import Copies, copies_of
from trainer.measured.links import copies as copies_sent
from trainer.model.layer import expert_width, mlp_matrices

ROUTER_KERNELS = {True: 7, False: 22}  # kernels with and without moe_router_fusion
ROUTER_LAUNCHES = {True: 13.0, False: 31.0}  # in the ratio of row E054 of effects.csv: 31 of 72 kernels remain
PERMUTE_LAUNCHES = {True: 8.0, False: 20.0}
FULL_SMS = {"deepep": 20.0, "hybridep": 16.0, "ncclep": 16.0}  # SMs that a library needs for the full rate of the link


class Routed:
    """The routed feed-forward operations of one recipe.

    Argument `load` is the tokens of the hottest EP rank over the mean.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.recipe, self.rates, self.model = parts.recipe, parts.rates, parts.model
        self.ep, self.etp, self.parted = parts.ep, parts.etp, parts.parted

    def router(self, kind: Kind) -> list[Op]:
        experts, hidden = self.model.num_moe_experts or 1, self.model.hidden_size
        fused = self.parts.on("moe_router_fusion")
        launches, prepare = self.parts.launches("moe_router", kind), self.parts.launches("moe_preprocess", kind)
        slower = 1.6 if self.recipe.knob("moe_router_dtype") == "fp64" else 1.0
        small = ROUTER_KERNELS[fused]
        return within(
            [
                self.parts.norm("moe_router"),
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

    def permute(self, load: float) -> list[Op]:
        """Returns the permutation of tokens; none if HybridEP permutes inside its own kernel."""
        if self.dispatcher == "hybridep" and self.parts.on("moe_permute_fusion_into_hybridep"):
            return []
        entries = self.parted * self.seen_width * (self.topk + 1 if self.dispatcher == "alltoall" else 1.0)
        return [self._permutation(entries, "moe_preprocess")]

    def experts(self, kind: Kind, load: float) -> list[Op | Concurrent]:
        launches = self.parts.launches("moe", kind)
        sort = self._permutation(2 * self.rows(load) * self.seen_width, "moe") if self._sorts() else None
        more = self.rates.values["host.expert"] * self.local_experts * (not self._fused_mlp())
        ops = [
            *((sort,) if sort else ()),
            *self._etp("AllGather", load),
            *self._quantized(self.rows(load) * self.seen_width),
            self._grouped("fc1", load, mlp_matrices(self.model) - 1, launches(10 + more)),
            *self.activation(load, launches, backward=False),
            self._grouped("fc2", load, 1, launches(10 + more)),
            *self._etp("ReduceScatter", load),
            *((sort,) if sort else ()),
        ]
        return inside(ops, "experts")

    def unpermute(self, load: float) -> list[Op]:
        hidden = self.model.hidden_size
        copies = self.topk + 1 if self.dispatcher == "alltoall" else 2.0
        return [
            self._permutation(self.parted * self.seen_width * copies, "moe"),
            Op(
                kernel="residual",
                us=self.rates.memory_us(3 * self.parted * hidden),
                launches=self.parts.launches("moe", None)(3),
            ),
        ]

    def experts_backward(self, kind: Kind, load: float) -> tuple[list[Op | Concurrent], list[Op]]:
        """Returns (input gradients, weight gradients)."""
        launches = self.parts.launches("moe", kind)
        sort = [self._permutation(2 * self.rows(load) * self.seen_width, "moe")] if self._sorts() else []
        gates = mlp_matrices(self.model) - 1
        width = expert_width(self.model) / self.etp
        data: list[Op | Concurrent] = [
            *sort,
            *self._etp("AllGather", load),
            *self._quantized(self.rows(load) * self.seen_width),
            self._grouped("fc2", load, 1, launches(8)),
            *self.activation(load, launches, backward=True),
            *self._quantized(self.rows(load) * width * gates),
            self._grouped("fc1", load, gates, launches(8)),
            *self._etp("ReduceScatter", load),
            *sort,
        ]
        weights = [self._grouped("fc2", load, 1, launches(6)), self._grouped("fc1", load, gates, launches(6))]
        return inside(data, "experts"), within(weights, "experts")

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
    def seen_width(self) -> float:
        """Returns the channels of a token as sent to the experts."""
        return float(self.model.moe_latent_size or self.model.hidden_size)

    def rows(self, load: float) -> float:
        """Returns the token copies that the hottest rank's experts process, over their TP group."""
        rows = self.parted * self.etp * self.topk * load
        if self.parts.on("moe_pad_expert_input_to_capacity"):
            rows = self.parted * self.etp * self.topk * float(self.recipe.knob("moe_expert_capacity_factor") or 1.0)
        if self.parts.on("moe_router_padding_for_quantization") and self.rates.narrow:
            rows += 16.0 * self.local_experts
        return rows

    def _grouped(self, name: str, load: float, gates: int, launches: float) -> Op:
        width = expert_width(self.model) / self.etp
        us = self.rates.grouped_us(
            self.rows(load),
            self.local_experts,
            gates * self.seen_width * width,
            width,
            grouped=self.parts.on("moe_grouped_gemm"),
        )
        apart = 1.0 if self.parts.on("moe_grouped_gemm") else self.local_experts
        return Op(kernel="grouped_gemm", us=us, launches=launches * (1.0 if apart == 1 else 1 + 0.5 * apart))

    def activation(self, load: float, launches: Callable[[float], float], *, backward: bool) -> list[Op]:
        width, gates = expert_width(self.model) / self.etp, mlp_matrices(self.model) - 1
        passes = 1.6 if backward else 1.0
        biased = self.rates.values["memory.bias"] if self.model.add_bias_linear else 0.0
        us = (
            self.rates.memory_us(self.rows(load) * ((gates + 1) * width * passes + biased * width)) * self._fused_left()
        )
        name = "activation_backward" if backward else "activation"
        return [
            Op(kernel=name, us=us, launches=launches(4)),
            *self._quantized(self.rows(load) * width),
        ]

    def _fused_mlp(self) -> bool:
        fused = self.rates.release.fused_grouped_mlp or self.parts.on("use_transformer_engine_op_fuser")
        computes = "mxfp8" in (self.rates.hardware.precisions or ())
        return bool(fused and computes and self.recipe.training.precision == "mxfp8")

    def _fused_left(self) -> float:
        return self.rates.values["quantize.fused"] if self._fused_mlp() else 1.0

    def _permutation(self, entries: float, scope: str) -> Op:
        fused = self.parts.on("moe_permute_fusion")
        us = self.rates.memory_us(entries, passes=self.rates.values["memory.passes"] * (1.0 if fused else 1.5))
        return Op(kernel="permute", us=us, launches=self.parts.launches(scope, None)(PERMUTE_LAUNCHES[fused]))

    def _quantized(self, entries: float) -> list[Op]:
        us = self.rates.quantize_us(entries, experts=True) * self._fused_left()
        return [Op(kernel="quantize", us=us, launches=self.parts.launches("moe", None)(2))] if us else []

    def _sorts(self) -> bool:
        """Returns whether arriving copies must be sorted by expert."""
        return self.dispatcher in ("alltoall", "deepep") and self.local_experts > 1

    def _etp(self, name: str, load: float) -> list[Op]:
        if self.etp == 1:
            return []
        gb = self.parted * self.topk * load * self.seen_width * 2 * (self.etp - 1) / GIGA
        us = self.rates.ring_us(gb, self.etp)
        return [Op(kernel=name, us=us, stream=Stream.TP, sms=self.rates.collective_sms(), gb=gb, launches=2)]

    def exchange(self, way: str, load: float) -> list[Op]:
        """Returns dispatch or combine over the EP group, with the duration on the group's hottest rank; before
        dispatch, for other libraries than all-to-all, the exchange of token counts. [] with EP 1."""
        if self.ep == 1 and self.etp == 1:
            return []
        us, gb = self._exchange_us(load)
        if self.ep == 1:
            us, gb = 0.0, 0.0
        ops = [
            Op(
                kernel=f"{self.dispatcher}_{way}",
                us=us,
                launches=self.parts.launches("moe", None)(10),
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
                launches=self.parts.launches("moe_preprocess", None)(4),
                stream=Stream.EP,
                sms=0.0,
                sync=self._waits_for_counts(),
                ranges=(way,),
            )
            ops.insert(0, counts)
        return ops if us else []

    def _waits_for_counts(self) -> bool:
        """Returns whether the host must know how many tokens arrive before it can continue."""
        recipe = self.recipe
        static = recipe.knob("moe_pad_expert_input_to_capacity") or recipe.knob("moe_paged_stash")
        whole = recipe.knob("cuda_graph_impl") == "full_iteration"
        return not (static or whole or recipe.knob("moe_expert_rank_capacity_factor"))

    def _exchange_us(self, load: float) -> tuple[float, float]:
        """Returns (microseconds, GB out of a rank) of one dispatch or combine."""
        rates, library = self.rates, self.dispatcher
        near = max(1.0, min(self.ep, rates.domain / self.etp))
        domains = max(1, round(self.ep / near))
        token_gb = self.parted * self.seen_width * 2 / GIGA
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
        """Returns the share of its bandwidth that a library reaches with the SMs it is given; 1 if no knob gives it
        SMs."""
        given, full = self._own_sms(), FULL_SMS.get(self.dispatcher, 1.0)
        return 1.0 if given is None else min(1.0, given / full) ** 0.7

    def _exchange_sms(self) -> float:
        given = self._own_sms()
        return self.rates.collective_sms() if given is None else given / self.rates.sms
