"""A whole training step of a recipe on a machine: stages, pipeline, the work after it, and the total time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import log2

from trainer.engines.simulated.end import EndOfStep, end_of_step
from trainer.engines.simulated.ops import Op
from trainer.engines.simulated.parts import Kind
from trainer.engines.simulated.passes import Passes
from trainer.engines.simulated.pipeline import Run, Shape, run_pipeline
from trainer.engines.simulated.rates import GIGA, Rates, Values
from trainer.engines.simulated.routing import Routing, routing_of
from trainer.engines.simulated.schedule import schedule_of
from trainer.engines.simulated.stages import Stage, stages_of
from trainer.recipe.identity import effective
from trainer.recipe.layout import layout_of
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe

ENDS = 3.0  # time of embedding, head and loss, forward and backward, relative to forward alone


class Simulation:
    """One recipe on one machine, without noise. Times are computed on first access."""

    def __init__(
        self,
        recipe: Recipe,
        machine: Machine,
        *,
        values: Values | None = None,
        release: str | None = None,
        steps: int = 1,
    ) -> None:
        self.recipe, self.machine = recipe, machine
        self.rates = Rates(recipe, machine, values=values, release=release)
        self.layout = layout_of(recipe)
        self.schedule = schedule_of(recipe)
        self.routing: Routing = routing_of(recipe, machine, steps=steps)

    @cached_property
    def stages(self) -> tuple[tuple[Stage, ...], ...]:
        """Returns the stages, [PP][VPP]."""
        return stages_of(self.recipe)

    @cached_property
    def plain(self) -> Passes:
        """Returns the passes of ranks that nothing slows down."""
        return Passes(self.recipe, self.rates)

    @cached_property
    def passes(self) -> tuple[Passes, ...]:
        """Returns the passes, [PP]. The ranks of a stage are equal except for stragglers, which the others wait for."""
        slower = self._stragglers()
        return tuple(
            Passes(self.recipe, self.rates, compute=slower[rank][0], host=slower[rank][1])
            if rank in slower
            else self.plain
            for rank in range(self.layout.pp)
        )

    def pipeline_rank(self, rank: int) -> int:
        return rank * self.layout.pp // self.layout.world

    @property
    def late_ranks(self) -> tuple[int, ...]:
        """Returns the first rank of each straggler."""
        each = self.recipe.cluster.gpus_per_node or self.recipe.hardware.gpus_per_node
        found = (one.rank if one.rank is not None else (one.node or 0) * each for one in self.machine.stragglers)
        return tuple(rank for rank in found if rank < self.layout.world)

    def is_late(self, rank: int) -> bool:
        each = self.recipe.cluster.gpus_per_node or self.recipe.hardware.gpus_per_node
        return any(
            rank == one.rank or (one.rank is None and rank // each == (one.node or 0))
            for one in self.machine.stragglers
        )

    def _stragglers(self) -> Mapping[int, tuple[float, float]]:
        """Returns {pipeline rank: (factor of compute time, factor of host time)} of the stragglers."""
        found: dict[int, tuple[float, float]] = {}
        each = self.recipe.cluster.gpus_per_node or self.recipe.hardware.gpus_per_node
        for late in self.machine.stragglers:
            rank = late.rank if late.rank is not None else (late.node or 0) * each
            if rank >= self.layout.world:
                continue
            place = self.pipeline_rank(rank)
            compute, host = found.get(place, (1.0, 1.0))
            found[place] = max(compute, late.compute), max(host, late.host)
        return found

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Returns the kind of every decoder layer; MTP layers are of the last one's kind."""
        recipe, model, count = self.recipe, self.recipe.architecture, self.recipe.architecture.num_layers
        wide: set[int] = set()
        if recipe.knob("first_last_layers_bf16"):
            start, end = (recipe.knob(f"num_layers_at_{side}_in_bf16") for side in ("start", "end"))
            wide = {*range(start), *range(count - end, count)}
        block = recipe.knob("recompute_num_layers") if recipe.knob("recompute_method") == "block" else None
        again = {layer for rank in self.stages for stage in rank for layer in stage.layers[:block]}
        kinds = zip(model.layer_kinds, model.windowed_layers, strict=True)
        return tuple(
            Kind(kind.mixer, kind.feed, windowed, layer in wide, layer in again)
            for layer, (kind, windowed) in enumerate(kinds)
        )

    @cached_property
    def _stage_us(self) -> dict[tuple[int, int, str], float]:
        return {}

    def pass_us(self, rank: int, chunk: int, way: str) -> float:
        """Returns the time of one pass through a chunk, µs: `forward`, `backward`, or `merged` (both, of one chunk)."""
        key = rank, chunk, way
        if key not in self._stage_us:
            stage, passes = self.stages[rank][chunk], self.passes[rank]
            us = sum(
                passes.line(way, self.kinds[layer]).at(float(self.routing.hottest[layer])) for layer in stage.layers
            )
            if stage.mtp:
                us += stage.mtp * passes.line(way, self.kinds[-1]).at(float(self.routing.hottest[-1]))
            ends = {"forward": 1.0, "backward": 2.0, "merged": 3.0}[way]
            more = sum(op.us for op in self.ends(stage)) * ends
            self._stage_us[key] = (us + more) * self._waiting + self._sharded_us(rank, chunk, way)
        return self._stage_us[key]

    @cached_property
    def _waiting(self) -> float:
        return 1 + self.rates.values["waiting"] * (self.layout.world > 1)

    def ends(self, stage: Stage) -> list[Op]:
        """Returns the embedding, the output head and the loss of a stage, those of MTP included; forward."""
        model, rates, tp = self.recipe.architecture, self.rates, float(self.layout.tp)
        tokens = self.recipe.training.micro_batch_size * self.recipe.training.seq_length / float(self.layout.cp)
        ops = []
        if stage.embeds:
            ops.append(Op(kernel="embedding", us=rates.memory_us(3 * tokens / tp * model.hidden_size), launches=8))
        for _ in range(stage.mtp):
            ops.append(Op(kernel="gemm", us=rates.gemm_us(tokens, 2 * model.hidden_size**2 / tp), launches=20))
        heads = (1 + (model.mtp_num_layers or 0)) if stage.heads else 0
        fused = 2.0 if self.recipe.knob("cross_entropy_loss_fusion") else 5.0
        narrow = effective(self.recipe, "fp8_output_proj")
        for _ in range(heads):
            us = rates.gemm_us(tokens, model.hidden_size * model.vocab_size / tp, wide=not narrow)
            if narrow:  # quantizes the head's input, and in backward the gradient of the logits
                us += rates.quantize_us(tokens * (model.hidden_size + model.vocab_size / tp)) / ENDS
            ops.append(Op(kernel="gemm", us=us, launches=10))
            ops.append(Op(kernel="loss", us=rates.memory_us(fused * 2 * tokens * model.vocab_size / tp), launches=20))
        return ops

    def _sharded_us(self, rank: int, chunk: int, way: str) -> float:
        """Returns the time that Megatron-FSDP adds to a pass, µs: parameter gathers, in backward gradient scatters
        too; 0 unless it shards parameters."""
        recipe, stage = self.recipe, self.stages[rank][chunk]
        strategy = recipe.knob("data_parallel_sharding_strategy")
        if not recipe.knob("use_megatron_fsdp") or strategy != "optim_grads_params":
            return 0.0
        gb = (stage.dense + stage.experts) * 2 / GIGA
        once = self.rates.ring_us(gb, float(self.layout.dp * self.layout.cp), stride=float(self.layout.tp))
        comm = once * {"forward": 1.0, "backward": 3.0, "merged": 4.0}[way]
        room = sum(self.passes[rank].line(way, self.kinds[layer]).even for layer in stage.layers)
        speed = self.rates.values["overlap.dp"] * self.machine.overlap.dp
        return max(0.0, comm - speed * room) + self.rates.collective_sms() * min(comm, room)

    def _turn_us(self, rank: int, shape: Shape) -> float:
        if len(shape) == 1:
            return self.pass_us(rank, shape[0][1], "forward" if shape[0][0] else "backward")
        chunks = [chunk for _, chunk in shape]
        return sum(self.pass_us(rank, chunk, "merged") for chunk in chunks) / len(chunks)

    @cached_property
    def run(self) -> Run:
        recipe = self.recipe
        pp = float(self.layout.pp)
        sequence = self.layout.tp if recipe.knob("sequence_parallel") else 1
        tokens = recipe.training.micro_batch_size * recipe.training.seq_length / (self.layout.cp * sequence)
        gb = tokens * recipe.architecture.hidden_size * 2 / GIGA
        send = self.rates.ring_us(gb, 2.0, stride=self.layout.world / pp) if pp > 1 else 0.0
        overlapped = self.schedule.vpp > 1 and bool(recipe.knob("overlap_p2p_comm"))
        return run_pipeline(self.schedule, self._turn_us, send_us=send, overlapped=overlapped)

    @cached_property
    def end(self) -> EndOfStep:
        return end_of_step(self.rates, self.run, self.stages)

    @cached_property
    def step_us(self) -> float:
        return self.end.step_us + self.pauses_us

    @property
    def pauses_us(self) -> float:
        """Returns the time of garbage collection per step, µs.

        With automatic collection each rank collects at its own time and all wait for it; with manual collection all
        collect together.
        """
        host = self.machine.host
        if not host.gc_ms:
            return 0.0
        if self.recipe.knob("manual_gc"):
            every = float(self.recipe.knob("manual_gc_interval") or 0)
            return 1e3 * host.gc_ms / every if every else 0.0
        return 1e3 * host.gc_ms / host.gc_every_steps * (1 + 0.5 * log2(max(1, self.layout.world)))

    @cached_property
    def load_slope(self) -> float:
        """Returns the relative increase of the step time per unit of the hottest ranks' mean load."""
        busiest = 0.0
        for rank in range(self.layout.pp):
            slopes = 0.0
            for stage in self.stages[rank]:
                for layer in stage.layers:
                    kind = self.kinds[layer]
                    ways = ("merged",) if self.schedule.merged else ("forward", "backward")
                    lines = [self.passes[rank].line(way, kind) for way in ways]
                    slopes += sum(line.slope for line in lines) * float(self.routing.hottest[layer])
            busiest = max(busiest, slopes)
        return busiest * self.schedule.microbatches / self.step_us

    @property
    def tokens_per_s_per_gpu(self) -> float:
        training = self.recipe.training
        return training.tokens_per_step / self.layout.world / (self.step_us * 1e-6)
