"""Finds the GPU of an imported job: a row of the hardware table, or figures by the user, a file or rocm-smi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from autotune.importing.found import Found, ImportOptions
from autotune.importing.here import amd_gpu_here, gpu_here
from trainer.errors import refused
from trainer.recipe.gpu_figures import GpuFigures
from trainer.recipe.hardware import known_hardware
from trainer.recipe.source import Source, nearest
from trainer.recipe.validation import validated_part

GPU = "--gpu"
FIGURES = (".yaml", ".yml", ".json")  # suffixes of files with the figures of a GPU
Gpu = str | dict[str, Any]  # name of a row of the hardware table, or figures


def gpu_of(found: Found, options: ImportOptions) -> Gpu:
    """Returns the value of `cluster.gpu`.

    Raises BadInputError if neither the file, the user nor the machine gives it.
    """
    if options.gpu is not None:
        return _asked_for(options.gpu)
    known = known_hardware()
    words = (found.started.sizes.gpu or "").lower().replace("_", "-").replace("|", "-").replace("&", "-").split("-")
    named = {gpu for gpu in known if gpu in words}
    if len(named) == 1:
        return named.pop()
    if here := gpu_here(known):
        options.say(f"{here} is the GPU of this machine: {GPU} for another")
        return here
    if amd := amd_gpu_here():
        raise refused(
            options.file, f"this machine's {amd['name']} is not a GPU of the table", f"{GPU} {_template(amd)!r}"
        )
    raise refused(options.file, "it does not say on which GPU", f"{GPU}, one of {', '.join(known)}, or its figures")


def gpus_of_a_node(gpu: Gpu) -> int | None:
    """Returns the GPUs per node by the hardware table; None for a GPU given by figures."""
    return known_hardware()[gpu].gpus_per_node if isinstance(gpu, str) else None


def _asked_for(words: str) -> Gpu:
    known = known_hardware()
    if words in known:
        return words
    if words.lstrip().startswith("{"):
        return _figures(_mapping(words, where=GPU), where=GPU)
    if words.endswith(FIGURES):
        return _figures(_mapping(_text(Path(words)), where=words), where=words)
    likely = nearest(words, known)
    hint = f"did you mean {likely}?" if likely else f"there are {', '.join(known)}; else give its figures"
    raise refused(GPU, f"{words!r} is not known", hint)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refused(GPU, f"{path} cannot be read: {error}", "name a YAML file of figures") from None


def _mapping(text: str, *, where: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise refused(where, f"it is not YAML: {str(error).splitlines()[0]}", f"write {_template({})}") from None
    if not isinstance(data, dict):
        raise refused(where, "it holds no figures", f"write {_template({})}")
    return data


def _figures(data: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Returns the validated figures; if they are of this machine's GPU, rocm-smi's complete them."""
    here = amd_gpu_here() or {}
    if data.get("name") in (None, here.get("name")) and data.get("vendor") in (None, here.get("vendor")):
        data = here | data
    given = validated_part(GpuFigures, Source(name=where, data=data))
    return given.model_dump(mode="json", exclude_defaults=True)


def _template(known: dict[str, Any]) -> str:
    """Returns the figures that a user has to write, with the known values and `N` for the others."""
    required = (name for name, field in GpuFigures.model_fields.items() if field.is_required())
    fields = (*required, "network_gbit_s")
    return "{" + ", ".join(f"{name}: {value}" for name, value in (dict.fromkeys(fields, "N") | known).items()) + "}"
