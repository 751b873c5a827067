"""The command of a rank with Megatron-Bridge: the user's own, with the recipe's overrides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.frameworks.burst import COMMAND, WRITTEN
from trainer.frameworks.framework import RankCommand
from trainer.frameworks.megatron_bridge.overrides import Override, not_expressed, written
from trainer.frameworks.megatron_bridge.precision import FIELDS, NAMES
from trainer.frameworks.megatron_bridge.versions import NEWEST, Version, version_of
from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS
from trainer.values import knob_value

PLACE = "{args}"
_OVERRIDE = re.compile(r"(?:~|\++)?([A-Za-z_][\w.]*)(?:=|$)")  # section.key=value
OVERLAP = "comm_overlap"
OF_OVERLAP = tuple(name for name, knob in KNOBS.items() if (knob.megatron_bridge or "").startswith(f"{OVERLAP}."))
CONFIGURATION = "configuration.yaml"  # Bridge's final configuration, in its own folder
_TAKEN_AWAY, _HAS_NONE = f"{OVERLAP}=null", f"{OVERLAP}: null"


def rank_command(recipe: Recipe, named: str | None, bursts: Path | None) -> RankCommand:
    """Returns the command for a release; `bursts` of the study show whether the Bridge recipe has a `comm_overlap`.

    Raises BadInputError for an unknown release.
    """
    version = version_of(named)
    command = () if recipe.trainer is None else recipe.trainer.command
    overlap = bursts is None or has_overlap(bursts)
    lost = (f"{each.what}: {knob_value(each.value)} ({each.why})" for each in not_expressed(recipe, version))
    return RankCommand(argv=with_recipe(command, recipe, version, overlap=overlap), lost=tuple(lost))


def with_recipe(
    command: Sequence[str], recipe: Recipe, version: Version = NEWEST, *, overlap: bool = True
) -> tuple[str, ...]:
    """Returns the command with the recipe's settings as overrides at its end, or in place of {args}.

    If both set a path, the recipe's value is kept. Settings that the recipe does not mention stay as in the Bridge
    recipe. `overlap`: whether the Bridge recipe has a `comm_overlap`, as most do.
    """
    words = tuple(each.word for each in mentioned(recipe, version, overlap=overlap))
    paths = {_path(word) for word in words}
    kept = [word for word in command if word.startswith("-") or "=" not in word or _path(word) not in paths]
    at = kept.index(PLACE) if PLACE in kept else len(kept)
    return (*kept[:at], *words, *kept[at + 1 :])


def has_overlap(bursts: Path) -> bool:
    """Returns whether the Bridge recipe has a `comm_overlap`, read from the first burst that wrote Bridge's
    configuration and whose command did not remove it; True without such a burst."""
    for configuration in sorted(bursts.glob(f"*/{WRITTEN}/{CONFIGURATION}")):
        command = configuration.parent.parent / COMMAND
        if not command.exists() or _TAKEN_AWAY in shlex.split(command.read_text()):
            continue
        return _HAS_NONE not in configuration.read_text(errors="replace").splitlines()
    return True


def mentioned(recipe: Recipe, version: Version = NEWEST, *, overlap: bool = True) -> Iterator[Override]:
    """Yields overrides for layout, batch, precision and knobs that the recipe sets, and for the model if it is written
    out rather than named.

    Bridge applies its precision and `comm_overlap` after everything else. The precision is set by name if it has one
    and the recipe sets none of its fields, else completely. `comm_overlap` is removed if the recipe sets all its knobs;
    else it stays, and its knobs are set inside it. If the Bridge recipe has none, they are set where they act.
    """
    whole = all(name in recipe.knobs for name in OF_OVERLAP)
    inside = overlap and not whole
    by_name = NAMES.get(recipe.training.precision) if not any(name in recipe.knobs for name in FIELDS) else None
    if by_name:
        yield Override(what="precision", path="mixed_precision", value=by_name)
    for each in written(recipe, version):
        if each.what == "precision" and by_name:
            continue
        if each.what in OF_OVERLAP and inside:
            continue
        if _wanted(recipe, each.what, whole=whole):
            yield each
    if inside:
        for name in OF_OVERLAP:
            if name in recipe.knobs:
                yield Override(what=name, path=str(KNOBS[name].megatron_bridge), value=effective(recipe, name))


def words_by_path(argv: Sequence[str]) -> dict[str, str]:
    """Maps each path to its override, as text for a shell."""
    return {found[1]: shlex.quote(word) for word in argv if (found := _OVERRIDE.match(word)) and "." in found[1]}


def _wanted(recipe: Recipe, what: str, *, whole: bool) -> bool:
    if what in KNOBS:
        return KNOBS[what].section != "knobs" or what in recipe.knobs
    return whole if what == OVERLAP else not isinstance(recipe.model, str)


def _path(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")
