"""The nearest values that a rule allows: fewest knobs changed, then smallest ratio, then the smaller value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product

from trainer.recipe.layout import layer_counts_of_ranks, layout_of
from trainer.recipe.rules.rule import Suggestion
from trainer.recipe.settings import Settings

TP = "tensor_model_parallel_size"
PP = "pipeline_model_parallel_size"
CP = "context_parallel_size"
EP = "expert_model_parallel_size"
ETP = "expert_tensor_parallel_size"
VPP = "virtual_pipeline_model_parallel_size"
LAYOUT = "pipeline_model_parallel_layout"
UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def closest(value: int, candidates: Iterable[int]) -> int:
    """Returns the candidate with the smallest ratio to `value`; of two equal ratios the smaller.

    Raises ValueError for none.
    """
    return min(candidates, key=lambda candidate: (abs(math.log(candidate / value)), candidate))


def size_where(name: str, allowed: Callable[[Settings, int], bool]) -> Callable[[Settings], Suggestion]:
    """Returns a function that gives the size, among divisors of the world size, nearest to the current one for which
    `allowed` holds; {} if it holds for none."""

    def nearest(recipe: Settings) -> Suggestion:
        sizes = [size for size in divisors(recipe.world_size) if allowed(recipe, size)]
        return {name: closest(recipe.knob(name) or 1, sizes)} if sizes else {}

    return nearest


def grid(recipe: Settings) -> Suggestion:
    """Returns TP, PP and CP whose product divides the world size; heads divide over TP and layers over PP if
    possible."""
    now, model = layout_of(recipe), recipe.architecture
    sizes = divisors(now.world)

    def cost(choice: tuple[int, int, int]) -> tuple[float, ...]:
        tp, pp, cp = choice
        uneven = (model.num_attention_heads % tp > 0) + (pp != now.pp and model.num_layers % pp > 0)
        uneven += recipe.training.seq_length % (2 * cp if cp > 1 else 1) > 0
        return uneven, *distance(choice, (now.tp, now.pp, now.cp))

    legal = [choice for choice in product(sizes, sizes, sizes) if now.world % math.prod(choice) == 0]
    best: tuple[int, int, int] = min(legal, key=cost)
    return changed(recipe, dict(zip((TP, PP, CP), best, strict=True)) | split_over(recipe, best[1]))


def split_over(recipe: Settings, pp: int) -> Suggestion:
    """Returns a pipeline layout if the layers do not divide over another PP; {} if they do, or if the split is
    given."""
    now = layout_of(recipe)
    whole = pp == now.pp or recipe.architecture.num_layers % pp == 0
    if whole or recipe.knob(LAYOUT) or any(recipe.knob(name) for name in UNEVEN):
        return {}
    return {LAYOUT: even_layout(recipe, pp)}


def expert_grid(recipe: Settings) -> Suggestion:
    """Returns EP and ETP whose product with PP divides the world size; EP divides the experts, and EP=1 keeps ETP equal
    to TP; {} if there are none. Of two equal distances the one that keeps EP is taken: ETP may just follow TP."""
    now, experts = layout_of(recipe), recipe.architecture.num_moe_experts or 1
    legal = [
        (ep, etp)
        for ep in divisors(experts)
        for etp in sorted({now.etp, now.tp, 1})
        if now.world % (ep * etp * now.pp) == 0 and (ep > 1 or etp == now.tp)
    ]
    if not legal:
        return {}
    best = min(legal, key=lambda choice: (distance(choice, (now.ep, now.etp)), choice[0] != now.ep))
    return changed(recipe, dict(zip((EP, ETP), best, strict=True)))


def distance(choice: Iterable[int], now: Iterable[int]) -> tuple[float, ...]:
    """Returns the distance of sizes from the current ones: number of changes, sum of |log ratio|, sum of log ratio."""
    ratios = [math.log(there / here) for there, here in zip(choice, now, strict=True)]
    return sum(ratio != 0 for ratio in ratios), sum(abs(ratio) for ratio in ratios), sum(ratios)


def changed(recipe: Settings, suggestion: Suggestion) -> Suggestion:
    """Returns the suggestion without values that the recipe already has; an unset ETP counts as its default."""
    now = {name: recipe.knob(name) for name in suggestion}
    if ETP in now:
        now[ETP] = recipe.expert_tensor_parallel_size
    return {name: value for name, value in suggestion.items() if now[name] != value}


def stages(recipe: Settings) -> Suggestion:
    """Returns a PP near the current one that divides the layers; if there is none, a pipeline layout for the current
    PP."""
    layers, pp = recipe.architecture.num_layers, layout_of(recipe).pp
    near = [size for size in divisors(recipe.world_size) if layers % size == 0 and 0.5 <= size / pp <= 2]
    return {PP: closest(pp, near)} if near else {LAYOUT: even_layout(recipe, pp)} | no_uneven(recipe)


def even_layout(recipe: Settings, pp: int) -> str:
    """Returns the pipeline layout text of PP·VPP stages: the first ones have one layer more, MTP is in the last."""
    model, number = recipe.architecture, pp * layout_of(recipe).vpp
    each, over = divmod(model.num_layers, number)
    first = _alike(each + 1, over) if over else ""
    return "E" + first + _alike(each, number - over - 1) + _layers(each) + "m" * (model.mtp_num_layers or 0) + "L"


def _alike(layers: int, number: int) -> str:
    """Returns equal stages as layout text: "(t*2|)*3"."""
    stage = f"{_layers(layers)}|"
    return stage * number if number < 2 else f"({stage})*{number}"


def _layers(number: int) -> str:
    return f"t*{number}" if number > 1 else "t" * number


def no_uneven(recipe: Settings) -> Suggestion:
    return {name: None if name.startswith("num") else False for name in UNEVEN if recipe.knob(name)}


def chunks(recipe: Settings) -> Suggestion:
    """Returns a VPP that divides the layers of every stage; if there is none, no interleaving and no overlap of its
    communication."""
    now = layout_of(recipe)
    shared = math.gcd(*layer_counts_of_ranks(recipe))
    sizes = [size for size in divisors(shared) if size > 1] if shared else []
    if now.pp > 1 and sizes:
        return {VPP: closest(now.vpp, sizes)}
    return no_interleaving(recipe)


def no_interleaving(recipe: Settings) -> Suggestion:
    return changed(recipe, {VPP: None, "overlap_p2p_comm": False, "microbatch_group_size_per_vp_stage": None})


def batch(recipe: Settings) -> Suggestion:
    """Returns a micro batch that divides a rank's share of the global batch.

    If no share is whole: a global batch, or, if that is frozen, parallel sizes whose DP divides it.
    """
    rows, over = divmod(recipe.training.global_batch_size, recipe.data_parallel_size)
    if not over and rows:
        return {"micro_batch_size": closest(recipe.training.micro_batch_size, divisors(rows))}
    if "global_batch_size" not in recipe.tune.freeze:
        each = recipe.data_parallel_size * recipe.training.micro_batch_size
        return {"global_batch_size": max(1, round(recipe.training.global_batch_size / each)) * each}
    return dividing(recipe)


def dividing(recipe: Settings) -> Suggestion:
    """Returns the nearest TP, PP and CP with which DP divides the global batch, and a micro batch that divides a rank's
    share; {} if there are none."""
    now, batch_size, micro = layout_of(recipe), recipe.training.global_batch_size, recipe.training.micro_batch_size
    sizes = divisors(now.world)
    shares = {
        (tp, pp, cp): batch_size // dp
        for tp, pp, cp in product(sizes, sizes, sizes)
        if now.world % (tp * pp * cp) == 0
        and batch_size % (dp := now.world // (tp * pp * cp)) == 0
        and pp <= max(now.pp, recipe.architecture.num_layers)
    }
    if not shares:
        return {}

    def cost(choice: tuple[int, int, int]) -> tuple[float, ...]:
        heads, whole = recipe.architecture.num_attention_heads % choice[0], shares[choice] % micro == 0
        sequence = recipe.training.seq_length % (2 * choice[2] if choice[2] > 1 else 1)
        return bool(heads) + bool(sequence), not whole, *distance(choice, (now.tp, now.pp, now.cp))

    best = min(shares, key=cost)
    micro_batch = {"micro_batch_size": closest(micro, divisors(shares[best]))}
    return changed(recipe, dict(zip((TP, PP, CP), best, strict=True)) | split_over(recipe, best[1]) | micro_batch)
