"""Arguments of Megatron-LM's `pretrain_gpt.py` for the knobs of a recipe, in one version's spelling.

Most knobs are written by their row in the table of flags. This module has those that depend on other knobs: flags that
switch something off, a precision that needs three flags, a value that older versions spell differently. The model is
written in `model.py`, additional required arguments in `required.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainer.frameworks.megatron_lm.flags import BY_NAME, HEAD, Flag, flags_of, since
from trainer.recipe import Recipe
from trainer.recipe.identity import acts, effective
from trainer.recipe.knobs import KNOBS, Knob
from trainer.recipe.predicates import interleaved

Words = tuple[str, ...]
Spell = Callable[[Recipe, Any, str], Words]  # the recipe, the knob's value, the version


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """A knob or a field of the model on the command line: `words`, or `why_not` with the reason why there are none.

    `lost`: the value matters and cannot be expressed; `wanted` has the words of another version that can.
    """

    name: str
    words: Words = ()
    why_not: str = ""
    lost: bool = False
    wanted: Words = ()


AT_DEFAULT = "at Megatron-LM's default or set by another flag"
INERT = "without effect with the other knobs"
NO_FLAG = "it has no flag"

PRECISIONS: dict[str, Words] = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp8_delayed": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "delayed"),
    "fp8_current": ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),
    "fp8_blockwise": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"),
    "mxfp8": ("--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"),
}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
WORDS_SINCE = {  # values that came after their flag
    ("--position-embedding-type", "yarn"): "0.19",
    ("--moe-flex-dispatcher-backend", "ncclep"): "0.19",
    ("--cuda-graph-impl", "full_iteration"): "0.18",
}
OF_CHUNKS = ("overlap_p2p_comm", "align_param_gather", "microbatch_group_size_per_vp_stage")


def whole_iteration(recipe: Recipe) -> bool:
    """Returns whether one CUDA graph holds the whole iteration, in the spelling of either version."""
    impl = recipe.knob("cuda_graph_impl")
    return impl == "full_iteration" or (impl == "local" and "full_iteration" in (recipe.knob("cuda_graph_scope") or ()))


def _grad_reduce(recipe: Recipe, value: bool | None, version: str) -> Words:
    """Returns the flag of the reduction dtype: Megatron-LM's default is fp32 with --bf16, not fp32 with --fp16."""
    precision = recipe.training.precision
    if value is None or precision == "fp32" or (precision == "fp16" and not value):
        return ()
    return ("--accumulate-allreduce-grads-in-fp32",) if value else ("--grad-reduce-in-bf16",)


def _virtual_stages(recipe: Recipe, value: int | None, version: str) -> Words:
    """Returns the flag with the number of virtual stages if there are several; no words if a layout is set: it implies
    the stages, and Megatron-LM accepts only one of the two."""
    if recipe.knob("pipeline_model_parallel_layout") is not None or value is None or value == 1:
        return ()
    return ("--num-virtual-stages-per-pipeline-rank", str(value))


def _align_param_gather(recipe: Recipe, value: bool, version: str) -> Words:
    """Returns the off-flag if it is off; it is on by default."""
    return () if value else ("--no-align-param-gather",)


def _granularity(recipe: Recipe, value: str | None, version: str) -> Words:
    """Returns the flag with the granularity that acts; no words for selective recompute of no module: Megatron-LM would
    recompute core_attn by default."""
    acting = effective(recipe, "recompute_granularity")
    return () if acting is None else ("--recompute-granularity", acting)


def _graph_impl(recipe: Recipe, value: str, version: str) -> Words:
    """Returns the flag; before 0.18 a graph of the whole iteration was a scope of local graphs."""
    if value == "none":
        return ()
    if whole_iteration(recipe):
        value = "full_iteration" if since(version, "0.18") else "local"
    return ("--cuda-graph-impl", value)


def _graph_scope(recipe: Recipe, value: Words | None, version: str) -> Words:
    if whole_iteration(recipe):
        return () if since(version, "0.18") else ("--cuda-graph-scope", "full_iteration")
    if not value:
        return ()
    return ("--cuda-graph-modules" if since(version, "0.18") else "--cuda-graph-scope", *value)


SPELLED: dict[str, Spell] = {
    "recompute_granularity": _granularity,
    "precision": lambda recipe, value, version: PRECISIONS[value],
    "grad_reduce_in_fp32": _grad_reduce,
    "virtual_pipeline_model_parallel_size": _virtual_stages,
    "overlap_p2p_comm": lambda recipe, value, version: () if value else ("--no-overlap-p2p-communication",),
    "align_param_gather": _align_param_gather,
    "cpu_offloading": lambda recipe, value, version: (),  # implied by --cpu-offloading-num-layers
    "cuda_graph_impl": _graph_impl,
    "cuda_graph_scope": _graph_scope,
}


def knob_spellings(recipe: Recipe, version: str = HEAD) -> list[Spelling]:
    """Returns the spelling of every knob that is not an environment variable, in the table's order."""
    return [_spelling(recipe, knob, version) for knob in KNOBS.values() if not _exported(knob)]


def in_words_of(name: str, words: Words, version: str) -> Spelling:
    """Returns the spelling with these words, or with the reason why the version lacks one of them."""
    missing = [why for flag, values in _groups(words) if (why := _lacks(flag, values, version))]
    if missing:
        return Spelling(name=name, why_not="; ".join(missing), lost=True, wanted=words)
    return Spelling(name=name, words=words, why_not="" if words else AT_DEFAULT)


def worded(flag: Flag, value: Any) -> Words:
    """Returns a value in the form that the flag takes; no word for a switch that does not mean this value."""
    if flag.form == "switch":
        return (flag.flag,) if flag.means == value else ()
    return (flag.flag, *_WORDED[flag.form](value))


def _exported(knob: Knob) -> bool:
    return knob.acts == "environment" or knob.name == "threads_per_rank"


def _spelling(recipe: Recipe, knob: Knob, version: str) -> Spelling:
    value = recipe.knob(knob.name)
    if not (interleaved(recipe) if knob.name in OF_CHUNKS else acts(recipe, knob.name)):
        return Spelling(name=knob.name, why_not=INERT)
    if knob.name in SPELLED:
        return in_words_of(knob.name, SPELLED[knob.name](recipe, value, version), version)
    flags = flags_of(knob.name)
    if value in (None, ()):
        return Spelling(name=knob.name, why_not=AT_DEFAULT)
    if not flags:
        at_rest = value == knob.default
        return Spelling(name=knob.name, why_not=AT_DEFAULT if at_rest else NO_FLAG, lost=not at_rest)
    flag = next((flag for flag in flags if flag.known_to(version)), flags[0])
    if not flag.known_to(version) and value == knob.default:
        return Spelling(name=knob.name, why_not=AT_DEFAULT)
    return in_words_of(knob.name, worded(flag, value), version)


def _groups(words: Words) -> Iterator[tuple[str, Words]]:
    """Yields each flag with its values."""
    starts = [place for place, word in enumerate(words) if word in BY_NAME]
    for start, end in pairwise([*starts, len(words)]):
        yield words[start], words[start + 1 : end]


def _lacks(flag: str, values: Words, version: str) -> str | None:
    """Returns why this version does not take the flag or one of its values; None if it does."""
    row = BY_NAME[flag]
    if not row.known_to(version):
        return f"{flag} came with {row.since}" if row.since and not since(version, row.since) else f"{flag} is gone"
    late = [value for value in values if not since(version, WORDS_SINCE.get((flag, value), "0"))]
    return f"{flag} {late[0]} came with {WORDS_SINCE[flag, late[0]]}" if late else None


def number(value: Any) -> str:
    """Formats a number for argparse: a large whole float without a decimal point, since some flags are integers."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) >= 1000 else str(value)


_WORDED: dict[str, Callable[[Any], Words]] = {
    "value": lambda value: (number(value),),
    "values": lambda value: tuple(map(str, value)) if isinstance(value, tuple) else (str(value),),
    "commas": lambda value: (",".join(map(str, value)),),
    "frequency": lambda value: (
        str(list(value)).replace(" ", "") if isinstance(value, tuple) else str(value),
    ),  # Megatron-LM evaluates a list as Python
    "dtype": lambda value: (DTYPES[value],),
}
