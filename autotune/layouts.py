"""Legal parallel layouts of a recipe, ranked by what the memory estimate allows. No burst, no time
estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from trainer.errors import BadInputError
from trainer.estimate.memory import estimate_memory
from trainer.recipe import Recipe
from trainer.recipe.rules import FindingKind, check

SIZES = {  # knob -> largest size worth a try: TP stays inside a node, the others inside the cluster
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 64,
    "context_parallel_size": 16,
    "expert_model_parallel_size": 512,
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One layout: its sizes by knob, and the estimated peak of the hottest rank. `fits` is by the peak; the worst
    case (skewed experts, what is not modelled) is `upper_gib`."""

    sizes: dict[str, int]
    data_parallel_size: int
    peak_gib: float
    upper_gib: float
    fits: bool

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Sort key: what fits first, then the most data parallelism, then the least memory."""
        return (not self.fits, -self.data_parallel_size, self.peak_gib)


def layouts(recipe: Recipe) -> list[Layout]:
    """Every legal layout in powers of two, best first. Source of the order: the phase `scale` (max DP that
    fits)."""
    return sorted((_layout(candidate) for candidate in _legal(recipe)), key=lambda layout: layout.rank)


def _legal(recipe: Recipe) -> Iterator[Recipe]:
    """Other knobs stay; expert tensor parallelism is off (EP before TP for experts) and SP follows TP."""
    for sizes in product(*(_powers(min(most, recipe.world_size)) for most in SIZES.values())):
        changes = dict(zip(SIZES, sizes, strict=True))
        changes |= {"expert_tensor_parallel_size": 1, "sequence_parallel": sizes[0] > 1}
        try:
            candidate = recipe.replace(changes)
        except BadInputError:
            continue
        if not any(finding.kind is FindingKind.ERROR for finding in check(candidate)):
            yield candidate


def _layout(recipe: Recipe) -> Layout:
    estimate, limit = estimate_memory(recipe), recipe.memory_limit_gib
    return Layout(
        sizes={knob: recipe.knob(knob) for knob in SIZES},
        data_parallel_size=recipe.data_parallel_size,
        peak_gib=estimate.peak_gib,
        upper_gib=estimate.upper_gib,
        fits=limit is None or estimate.peak_gib + estimate.outside_gib <= limit,
    )


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]
