"""Renders `plan --html`: every layout as a mark of throughput against memory, and the first ones by part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autotune.estimate.page import memory_pieces, model_name, time_pieces
from autotune.looks.quantities import duration, gib, gpu_or_rank, percent, significant, tokens_per_s
from autotune.looks.recipes import layout_words, setting_words
from autotune.looks.render import render
from autotune.looks.stacks import Stack, bar, legend
from autotune.looks.svg import Axis, drawing, line, place, round_step, tag
from autotune.looks.tables import Table
from autotune.plan.document import Plan, machine_words, unfit_words
from trainer.estimate.plan.choices import Choice, Point, cloud
from trainer.values import knob_value

SCATTER_PX = 420
BARS = 8  # choices whose parts are drawn


def plan_page(plan: Plan) -> str:
    recipe, first = plan.recipe, plan.choices[0] if plan.choices else None
    drawn = plan.choices[:BARS]
    return render(
        "plan.html.j2",
        name=recipe.name,
        figure=tokens_per_s(first.tokens_per_s_per_gpu, unit=_unit(plan)) if first else "no layout",
        figure_note=f"predicted, ± {percent(first.spread, 0)}, for {layout_words(first.recipe)}" if first else "",
        facts={
            "What it is": f"{model_name(recipe)} on {recipe.world_size} {recipe.cluster.gpu_name}, sequence "
            f"{recipe.training.seq_length:,}, global batch {recipe.training.global_batch_size:,}",
            "First choice": setting_words(first.recipe) if first else "",
            "Why": first.because if first else "",
            "Searched": f"{plan.found.legal.sum():,} legal layouts in {plan.found.estimated:,} estimates; "
            f"{plan.fitting:,} fit",
            "Machine": machine_words(plan),
            "Too small": "" if plan.fitting else unfit_words(plan),
            "The recipe": "; ".join(f"illegal as it is: {finding.message}" for finding in plan.findings),
        },
        scatter=_scatter(plan),
        choices=_choices(plan),
        time_figure=_bars(drawn, "time"),
        memory_figure=_bars(drawn, "memory", limit=plan.limit_gib),
        missing=Table(columns=("layout", "why"), rows=tuple((one.layout, one.because) for one in plan.missing)),
        changes=_changes(plan),
        assumptions=plan.assumptions,
    )


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The coordinates of the scatter plot: throughput upwards, memory to the right from `low` to `high` GiB."""

    axis: Axis
    low: float
    high: float

    def x(self, needs_gib: float) -> float:
        return (needs_gib - self.low) / (self.high - self.low)

    def mark(self, tokens: float, needs_gib: float, **attributes: str) -> Markup:
        return tag("circle", cx=place(self.x(needs_gib)), cy=f"{self.axis.y(tokens):.1f}", **attributes)


def _unit(plan: Plan) -> str:
    return gpu_or_rank(plan.recipe.cluster.gpu_name)


def _scatter(plan: Plan) -> Markup:
    """Draws every layout as a mark, the limit, and the choices on top, which the keyboard can focus."""
    points = cloud(plan.found)
    frame = _frame(points, plan.limit_gib)
    parts = [*frame.axis.grid(), *_memory_axis(frame, plan)]
    for point in points:
        class_ = "point" if point.fits else "point over-limit"
        parts.append(
            frame.mark(
                point.tokens_per_s_per_gpu, point.needs_gib, r="4", class_=class_, data_tip=_tip(point, _unit(plan))
            )
        )
    for number, choice in enumerate(plan.choices, 1):
        rate, needs = choice.tokens_per_s_per_gpu, choice.needs_gib
        point = Point(recipe=choice.recipe, tokens_per_s_per_gpu=rate, needs_gib=needs, fits=choice.fits)
        tip = f"{number}. {_tip(point, _unit(plan))}"
        parts.append(frame.mark(rate, needs, r="6", class_="point chosen", tabindex="0", data_tip=tip))
    name = f"{len(points)} layouts by predicted throughput and memory; the tables below have the figures of the first"
    return tag("p", f"tokens/s/{_unit(plan)}", class_="unit") + drawing(
        parts, height=SCATTER_PX, name=name, class_="chart"
    )


def _frame(points: Sequence[Point], limit_gib: float | None) -> _Frame:
    rates = [point.tokens_per_s_per_gpu for point in points] or [1.0]
    needs = [point.needs_gib for point in points] or [1.0]
    return _Frame(
        axis=Axis(low=0.9 * min(rates), high=1.03 * max(rates), top=14, bottom=SCATTER_PX - 40),
        low=0.95 * min(needs),
        high=1.03 * max([*needs, limit_gib or 0.0]),
    )


def _memory_axis(frame: _Frame, plan: Plan) -> list[Markup]:
    step = round_step((frame.high - frame.low) / 8)
    ticks = [k * step for k in range(math.ceil(frame.low / step), math.floor(frame.high / step) + 1)]
    y = str(SCATTER_PX - 22)
    parts = [tag("text", f"{tick:g}", x=place(frame.x(tick)), y=y, class_="axis middle") for tick in ticks]
    parts.append(
        tag(
            "text",
            f"GiB per {_unit(plan)}: upper bound, context and communication",
            x="50%",
            y=str(SCATTER_PX - 4),
            class_="axis middle",
        )
    )
    if (limit_gib := plan.limit_gib) is not None:
        x = frame.x(limit_gib)
        parts.append(line(x, frame.axis.top, x, frame.axis.bottom, "limit"))
        parts.append(tag("text", f"limit {limit_gib:g} GiB", x=place(x), y="10", class_="axis middle"))
    return parts


def _tip(point: Point, unit: str) -> str:
    rate = f"{tokens_per_s(point.tokens_per_s_per_gpu, unit=unit)}, {gib(point.needs_gib)} at most"
    return f"{layout_words(point.recipe)}\n{setting_words(point.recipe)}\n{rate}"


def _choices(plan: Plan) -> Table:
    rows = [
        (
            str(number),
            layout_words(choice.recipe),
            significant(choice.tokens_per_s_per_gpu, 4),
            significant(choice.model_tflops_per_gpu),
            duration(choice.step_s * 1e6),
            significant(choice.needs_gib),
            f"{setting_words(choice.recipe)}: {choice.because}",
        )
        for number, choice in enumerate(plan.choices, 1)
    ]
    header = ("", "layout", f"tokens/s/{_unit(plan)}", "TFLOPS", "step", "≤ GiB", "settings: why")
    return Table(columns=header, rows=tuple(rows), numbers=(2, 3, 4, 5))


def _bars(choices: tuple[Choice, ...], what: str, *, limit: float | None = None) -> Markup:
    """Draws one bar per choice on one scale: its step by part, or the memory of its hottest rank with the limit."""
    stacks = [
        Stack(
            label=f"{number}. {layout_words(choice.recipe)}",
            pieces=time_pieces(choice.time_by_part) if what == "time" else memory_pieces(choice.memory_by_part),
        )
        for number, choice in enumerate(choices, 1)
    ]
    longest = max([*(stack.total for stack in stacks), limit or 0.0], default=1.0) * (1.02 if limit else 1.0)
    bars = [bar(stack, longest=longest, mark=limit) for stack in stacks]
    return legend(piece for stack in stacks for piece in stack.pieces) + Markup("").join(bars)


def _changes(plan: Plan) -> Table:
    changed = plan.recipe.diff(plan.choices[0].recipe) if plan.choices else {}
    rows = tuple((knob, knob_value(was), knob_value(to)) for knob, (was, to) in changed.items())
    return Table(columns=("knob", "recipe", "first choice"), rows=rows)
