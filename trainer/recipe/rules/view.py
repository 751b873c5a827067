"""A recipe for predicates, with knobs from elsewhere: to evaluate rules on a table's row, or to record their reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from trainer.recipe.knobs import KNOBS
from trainer.recipe.schema import Recipe
from trainer.recipe.sections import Parallelism, Training


class View:
    """A recipe whose knobs are given by functions: `knob` returns a value, `has` whether the knob is set."""

    def __init__(self, base: Recipe, knob: Callable[[str], Any], has: Callable[[str], bool]) -> None:
        self._base, self.knob = base, knob
        self.architecture, self.hardware, self.world_size = base.architecture, base.hardware, base.world_size
        self.training, self.parallelism = cast(Training, _Part(knob)), cast(Parallelism, _Part(knob))
        self.knobs, self.tune = _Written(knob, has), base.tune

    def __getattr__(self, name: str) -> Any:
        """Returns sizes that a recipe computes from knobs; other attributes are the base recipe's."""
        own = getattr(Recipe, name, None)
        return own.fget(self) if isinstance(own, property) and own.fget else getattr(self._base, name)


class _Part:
    """Replaces `recipe.training` and `recipe.parallelism`, with knobs as attributes."""

    def __init__(self, knob: Callable[[str], Any]) -> None:
        self._knob = knob

    def __getattr__(self, name: str) -> Any:
        return self._knob(name)


class _Written(Mapping[str, Any]):
    """Replaces `recipe.knobs`, which has the knobs that are set and not those at their default."""

    def __init__(self, knob: Callable[[str], Any], has: Callable[[str], bool]) -> None:
        self._knob, self._has = knob, has

    def __contains__(self, name: object) -> bool:
        return self._has(str(name))

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return self._knob(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, knob in KNOBS.items() if knob.section == "knobs" and name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
