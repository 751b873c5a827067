"""The model chunks of every pipeline rank: their layers and ends of the model. Each kind of layer is simulated once."""

from __future__ import annotations

from collections.abc import Callable

from trainer.engines.simulated.memory import ends
from trainer.engines.simulated.memory.chunk import Chunk, Recompute, checkpoint, chunk_of
from trainer.engines.simulated.memory.feeds import FEEDS
from trainer.engines.simulated.memory.mixers import MIXERS
from trainer.engines.simulated.memory.sizes import Sizes
from trainer.engines.simulated.memory.state import quantizes, wide_layers
from trainer.engines.simulated.memory.tape import LayerMemory, Policy, Tape, simulate_layer
from trainer.recipe.architecture import LayerKind
from trainer.recipe.layout import layers_of_ranks, layout_of, mtp_layers_of_ranks, stages_of
from trainer.recipe.schema import Recipe

WHOLE_LAYERS = ("attn", "mlp", "moe", "mamba")
# value of TORCH_NCCL_AVOID_RECORD_STREAMS with which exchanged tensors are freed when the other stream is done
LATE_RELEASE = 0


def chunks_of_ranks(recipe: Recipe, loads: tuple[float, ...]) -> list[list[Chunk]]:
    """Returns the chunks, [PP][VPP]; `loads`: the expert load of each pipeline rank over the mean."""
    layout, numbers, mtp = layout_of(recipe), layers_of_ranks(recipe), mtp_chunks(recipe)
    wide, kinds = wide_layers(recipe), recipe.architecture.layer_kinds
    simulators = {load: _LayerSimulator(recipe, load) for load in set(loads)}
    return [
        [
            simulators[loads[rank]].chunk(
                embeds=rank == chunk == 0,
                layers=tuple((kinds[number], number not in wide) for number in layers),
                predicts=mtp.get((rank, chunk), 0),
                ends=rank == layout.pp - 1 and chunk == len(chunks) - 1,
            )
            for chunk, layers in enumerate(chunks)
        ]
        for rank, chunks in enumerate(numbers)
    ]


def layer_chunk(recipe: Recipe, *, moe: bool) -> Chunk:
    """Returns a chunk of one layer at an even load: the model's first layer with experts, or the first without."""
    kinds, narrow = recipe.architecture.layer_kinds, quantizes(recipe)
    kind = next((kind for kind in kinds if (kind.feed == "moe") == moe), kinds[0])
    return _LayerSimulator(recipe, 1.0).chunk(embeds=False, layers=((kind, narrow),), predicts=0, ends=False)


def mtp_chunks(recipe: Recipe) -> dict[tuple[int, int], int]:
    """Returns {(pipeline rank, chunk): number of multi-token-prediction layers there}."""
    layout = layout_of(recipe)
    if stages := stages_of(recipe):
        counts = ((stage, text.count("m")) for stage, text in enumerate(stages))
        return {(stage % layout.pp, stage // layout.pp): count for stage, count in counts if count}
    last = mtp_layers_of_ranks(recipe)[-1]
    return {(layout.pp - 1, layout.vpp - 1): last} if last else {}


class _LayerSimulator:
    """Simulates the memory of one recipe's layers under one load."""

    def __init__(self, recipe: Recipe, load: float) -> None:
        self._recipe = recipe
        self._policy, self._recompute = policy_of(recipe), recompute_of(recipe)
        self._sizes = {narrow: Sizes(recipe=recipe, load=load, quantized=narrow) for narrow in (False, True)}
        self._layers: dict[tuple[LayerKind, bool], LayerMemory] = {}
        self._ends: dict[str, LayerMemory] = {}
        self._chunks: dict[object, Chunk] = {}

    def chunk(self, *, embeds: bool, layers: tuple[tuple[LayerKind, bool], ...], predicts: int, ends: bool) -> Chunk:
        key = (embeds, layers, predicts, ends)
        if key not in self._chunks:
            self._chunks[key] = self._made(embeds=embeds, layers=layers, predicts=predicts, ends=ends)
        return self._chunks[key]

    def _made(self, *, embeds: bool, layers: tuple[tuple[LayerKind, bool], ...], predicts: int, ends: bool) -> Chunk:
        after = [self._end("final_norm")] if ends else []
        for _ in range(predicts):
            after += [self._end("prediction_input"), self._predicting(), self._end("final_norm")]
        after += [self._end("head")] * ((1 + (self._recipe.architecture.mtp_num_layers or 0)) if ends else 0)
        knob = self._recipe.knob
        return chunk_of(
            [self._layer(*layer) for layer in layers],
            before=[self._end("embedding")] if embeds else [],
            after=after,
            recompute=self._recompute,
            on_host=knob("cpu_offloading_num_layers") if knob("cpu_offloading") else 0,
            most_in_flight=knob("fine_grained_offloading_max_inflight_offloads"),
        )

    def _predicting(self) -> LayerMemory:
        layer = self._layer(self._recipe.architecture.mtp_kind, quantizes(self._recipe))
        return checkpoint([layer], self._recompute.share) if self._recompute else layer

    def _layer(self, kind: LayerKind, narrow: bool) -> LayerMemory:
        key = (kind, narrow)
        if key not in self._layers:
            tape = Tape()
            MIXERS[kind.mixer](tape, self._sizes[narrow])
            FEEDS[kind.feed](tape, self._sizes[narrow])
            self._layers[key] = simulate_layer(tape, self._policy)
        return self._layers[key]

    def _end(self, name: str) -> LayerMemory:
        if name not in self._ends:
            self._ends[name] = simulate_layer(ENDS[name](self._sizes[False]), Policy())
        return self._ends[name]


ENDS: dict[str, Callable[[Sizes], Tape]] = {
    "embedding": ends.embedding,
    "final_norm": ends.final_norm,
    "head": ends.head,
    "prediction_input": ends.prediction_input,
}


def policy_of(recipe: Recipe) -> Policy:
    """Returns the recipe's treatment of saved tensors."""
    selective = recipe.knob("recompute_granularity") == "selective"
    modules = recipe.knob("recompute_modules")
    recomputed = ("core_attn",) if modules is None else modules
    graphs = recipe.knob("cuda_graph_impl") in ("local", "transformer_engine")
    offloads = recipe.knob("fine_grained_activation_offloading")
    return Policy(
        recomputed=frozenset(recomputed if selective else ()),
        offloaded=frozenset((recipe.knob("offload_modules") or ()) if offloads else ()),
        captured=frozenset((recipe.knob("cuda_graph_scope") or WHOLE_LAYERS) if graphs else ()),
        delayed=bool(recipe.knob("delay_wgrad_compute")),
        late=recipe.knob("TORCH_NCCL_AVOID_RECORD_STREAMS") == LATE_RELEASE,
    )


def recompute_of(recipe: Recipe) -> Recompute | None:
    if recipe.knob("recompute_granularity") != "full":
        return None
    split = recipe.knob("distribute_saved_activations") and not recipe.knob("sequence_parallel")
    return Recompute(
        layers=recipe.knob("recompute_num_layers") or 1,
        block=recipe.knob("recompute_method") == "block",
        share=1 / layout_of(recipe).tp if split else 1.0,
    )
