"""Compares a recipe's values with those of Megatron-LM's parser after validation, knob by knob and field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.frameworks.megatron_lm.flags import Flag, flags_of
from trainer.frameworks.megatron_lm.model import LATENT_CONSTANTS, model_spellings, query_bias
from trainer.frameworks.megatron_lm.spelling import INERT, Spelling, knob_spellings, whole_iteration
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One knob or field: the value that the recipe expects, and the one that the parser has after validation."""

    name: str
    expected: Any  # in the parser's terms
    found: Any

    @property
    def kept(self) -> bool:
        return _same(self.expected, self.found)


def compared(recipe: Recipe, version: str, options: Options, args: Mapping[str, Any]) -> Iterator[Compared]:
    """Yields every field and knob that has an effect, a value and a flag. `args`: the namespace after validation."""
    for spelling in (*model_spellings(recipe, version), *knob_spellings(recipe, version)):
        if spelling.why_not == INERT or spelling.lost or _constant(recipe, spelling.name):
            continue
        for flag in _flags_setting(spelling.name, version):
            yield from _of_flag(recipe, flag, options[flag.flag], args)
    yield from _of_precision(recipe, args)


def _constant(recipe: Recipe, name: str) -> bool:
    """Returns True if the field, in a model with MLA, has no flag and Megatron-Core's default value."""
    return recipe.architecture.multi_latent_attention and name in LATENT_CONSTANTS


def _flags_setting(name: str, version: str) -> Iterator[Flag]:
    """Yields the flags that set a field in this version: one, or several switches."""
    known = [flag for flag in flags_of(name) if flag.known_to(version)]
    switches = [flag for flag in known if flag.form == "switch" and flag.means is not None]
    others = [flag for flag in known if flag.form != "switch"]
    return iter([*switches, *others[:1]])


def _of_flag(recipe: Recipe, flag: Flag, option: Mapping[str, Any], args: Mapping[str, Any]) -> Iterator[Compared]:
    name, value = str(flag.field), _value(recipe, str(flag.field))
    if name in ("precision", "vocab_size", "hybrid") or (value is None and flag.form != "switch"):
        return
    dest = _DEST.get(name, option["dest"])
    if dest not in args:  # validation deletes what it has moved elsewhere
        return
    expected = (value == flag.means) == (option["action"] == "_StoreTrueAction") if flag.form == "switch" else value
    if flag.form == "switch" and value is None:
        return
    yield Compared(name=name, expected=expected, found=args[dest])


_DEST = {
    "virtual_pipeline_model_parallel_size": "virtual_pipeline_model_parallel_size",
    "cuda_graph_scope": "cuda_graph_modules",
}


def _of_precision(recipe: Recipe, args: Mapping[str, Any]) -> Iterator[Compared]:
    from trainer.engines.megatron.config import PRECISIONS

    _, bf16, fields = PRECISIONS[recipe.training.precision]
    for name, value in ({"bf16": bf16} | fields).items():
        yield Compared(name=f"precision: {name}", expected=value, found=args[name])


def _value(recipe: Recipe, name: str) -> Any:
    """Returns the value as Megatron-LM represents it: null becomes what its validation fills in."""
    model = recipe.architecture
    if name == "activation_func":
        return model.activation
    if name == "add_qkv_bias":
        return query_bias(model)
    if name == "make_vocab_size_divisible_by":
        return model.make_vocab_size_divisible_by or 1
    if name in type(model).model_fields:
        return getattr(model, name)
    if name == "virtual_pipeline_model_parallel_size":
        chunks = layout_of(recipe).vpp
        return chunks if chunks > 1 else None
    if name in ("cuda_graph_impl", "cuda_graph_scope") and whole_iteration(recipe):
        return None  # one setting in two flags: refusals show whether it was accepted
    return recipe.knob(name)


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        return isinstance(found, list) and sorted(map(str, expected)) == sorted(map(str, found))
    if isinstance(found, list) and len(found) == 1:
        return _same(expected, found[0])
    if isinstance(expected, str):
        return str(found).removeprefix("torch.") == expected
    return bool(expected == found)


def lost(recipe: Recipe, version: str) -> list[Spelling]:
    """Returns the settings that this version has no flag for."""
    return [each for each in (*model_spellings(recipe, version), *knob_spellings(recipe, version)) if each.lost]
