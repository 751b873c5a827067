"""Renders `estimate --html`: the memory stack of every pipeline rank below the limit, and the stack of a step's
time."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from autotune.estimate.document import Estimate, calibration_words, machine_words, not_priced_words
from autotune.looks.quantities import duration, gib, gpu_or_rank, percent, significant, tokens_per_s
from autotune.looks.recipes import layout_words, setting_words
from autotune.looks.render import render
from autotune.looks.stacks import Piece, Stack, bar, columns, legend
from autotune.looks.tables import Table
from trainer.estimate.memory.parts import MEMORY_PARTS, memory_order
from trainer.estimate.time.parts import STEP_PARTS
from trainer.recipe import Recipe


def estimate_page(estimate: Estimate) -> str:
    recipe, time = estimate.recipe, estimate.time
    gpu, unit = recipe.cluster.gpu_name, gpu_or_rank(recipe.cluster.gpu_name)
    return render(
        "estimate.html.j2",
        name=recipe.name,
        figure=gib(estimate.memory.upper_gib),
        figure_note=f"per {unit} at most, {estimate.verdict}",
        facts={
            "What it is": f"{model_name(recipe)} on {recipe.world_size} {gpu} · {layout_words(recipe)}",
            "Settings": setting_words(recipe),
            "Memory": f"peak {gib(estimate.memory.peak_gib)}, upper bound {gib(estimate.memory.upper_gib)} on pipeline "
            f"rank {estimate.memory.hottest['pp_rank']}, and {gib(estimate.memory.outside_gib)} outside the allocator",
            "Time": f"{duration(time.step_s * 1e6)} per step, "
            f"{tokens_per_s(time.tokens_per_s_per_gpu, unit=unit)}, {significant(time.model_tflops_per_gpu)} TFLOPS, "
            f"± {percent(time.spread, 0)}",
            "Machine": "; ".join(machine_words(estimate)),
            "How sure": calibration_words(estimate),
        },
        memory_figure=_memory(estimate),
        memory_table=_memory_table(estimate),
        time_figure=_time(estimate),
        time_table=_time_table(estimate),
        assumptions=[*estimate.document["assumptions"], *not_priced_words(estimate)],
    )


def model_name(recipe: Recipe) -> str:
    """Returns the preset's name, or the size of an unnamed model."""
    model = recipe.architecture
    return recipe.model if isinstance(recipe.model, str) else f"{model.num_layers} layers of {model.hidden_size}"


def memory_pieces(by_part: Mapping[str, float]) -> tuple[Piece, ...]:
    return tuple(
        Piece(key=f"m-{name}", words=MEMORY_PARTS.get(name, name), value=by_part[name], text=gib(by_part[name]))
        for name in memory_order(list(by_part))
    )


def time_pieces(by_part: Mapping[str, float]) -> tuple[Piece, ...]:
    """Returns the pieces of STEP_PARTS; `by_part` is in seconds."""
    return tuple(
        Piece(key=name.removesuffix("_s"), words=words, value=by_part[name], text=duration(by_part[name] * 1e6))
        for name, words in STEP_PARTS.items()
    )


def _memory(estimate: Estimate) -> Markup:
    stacks = [Stack(label=str(rank), pieces=memory_pieces(parts)) for rank, parts in enumerate(estimate.by_rank)]
    hottest = estimate.memory.hottest["pp_rank"]
    tops = [estimate.needs_gib if rank == hottest else stack.total for rank, stack in enumerate(stacks)]
    name = f"Memory of {len(stacks)} pipeline ranks by part against the limit; the table below has the figures"
    figure = columns(stacks, tops=tops, limit=estimate.limit_gib, unit="GiB by pipeline rank", name=name)
    return figure + legend(piece for stack in stacks for piece in stack.pieces)


def _time(estimate: Estimate) -> Markup:
    stack = Stack(label=f"one step, {duration(estimate.time.step_s * 1e6)}", pieces=time_pieces(estimate.step_parts))
    return bar(stack, longest=stack.total) + legend(stack.pieces)


def _memory_table(estimate: Estimate) -> Table:
    names = list(estimate.by_rank[0])
    rows = [
        (str(rank), *(f"{parts[name]:.2f}" for name in names), f"{sum(parts.values()):.2f}")
        for rank, parts in enumerate(estimate.by_rank)
    ]
    header = ("rank", *(MEMORY_PARTS.get(name, name) for name in names), "all, GiB")
    return Table(columns=header, rows=tuple(rows), numbers=tuple(range(1, len(header))))


def _time_table(estimate: Estimate) -> Table:
    rows = [
        (STEP_PARTS[name], f"{seconds:.4f}", percent(seconds / estimate.time.step_s))
        for name, seconds in estimate.step_parts.items()
    ]
    return Table(columns=("part", "seconds", "share"), rows=tuple(rows), numbers=(1, 2))
