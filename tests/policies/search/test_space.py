"""The space of a study: absolute values, fixed while it runs, a point for every recipe and distances between them."""

from __future__ import annotations

from functools import cache

from policies.candidates.layouts import legal_space
from policies.candidates.neighbours import moves
from policies.search.space import JOINT_AXES, OTHER, SIZED, Choice, Size, Space, space_of
from tests.policies.drawn import cpu_recipe, gpu_recipe, tuned_by
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS


@cache
def space(*, cpu: bool = False) -> Space:
    base = cpu_recipe() if cpu else gpu_recipe()
    return space_of(base, legal_space(base).finals.candidates)


def test_every_axis_holds_the_value_of_the_base() -> None:
    for base, found in ((gpu_recipe(), space()), (cpu_recipe(), space(cpu=True))):
        point = found.point(base)
        assert set(point) == set(found.axes)
        for axis, domain in found.axes.items():
            value = point[axis]
            if isinstance(domain, Size):
                assert isinstance(value, int)
                assert 1 <= value <= domain.high, axis
            else:
                assert value in domain.values, axis
                assert value != OTHER, axis


def test_every_move_and_every_row_has_a_point_inside_the_axes() -> None:
    outside = []
    rows = legal_space(gpu_recipe()).finals.candidates
    some = [rows.recipe(at) for at in range(0, rows.count, max(rows.count // 50, 1))]
    for recipe in [*some, *(move.recipe for move in moves(gpu_recipe()))]:
        for axis, value in space().point(recipe).items():
            domain = space().axes[axis]
            inside = value in domain.values if isinstance(domain, Choice) else 1 <= int(value) <= domain.high
            outside += [] if inside else [(axis, value)]
    assert outside == []


def test_another_layout_is_nearer_than_a_far_one_and_a_row_has_no_distance_to_itself() -> None:
    base, wide = gpu_recipe(), gpu_recipe({"expert_model_parallel_size": 4})
    near = gpu_recipe({"expert_model_parallel_size": 8})
    table = tabulate([base, near, wide, near.replace({"moe_router_fusion": True})])
    distance = space().distance(table, space().point(base))
    assert distance.tolist() == [0.0, 1.0, 2.0, 2.0]


def test_knobs_that_only_mean_something_together_are_one_axis_and_sizes_are_no_choices() -> None:
    knobs = [knob for names in space().knobs.values() for knob in names]
    assert len(set(knobs)) == len(knobs)
    assert not set(knobs) & set(SIZED)
    assert set(knobs) <= set(KNOBS)
    for axis, names in JOINT_AXES.items():
        assert space().knobs.get(axis, names) == names


def test_a_frozen_knob_is_no_axis() -> None:
    open_one, frozen = gpu_recipe(), tuned_by(gpu_recipe(), freeze=("moe_router_fusion",))
    assert "moe_router_fusion" in axes(open_one)
    assert "moe_router_fusion" not in axes(frozen)


def axes(recipe: Recipe) -> set[str]:
    return set(space_of(recipe, tabulate([recipe])).axes)
