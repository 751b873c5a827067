"""Exports a recipe as overrides `section.key=value` for a Bridge recipe of the same model.

Bridge recipes set knobs of their own, so every knob is written, even at its default, and so is the model.
`comm_overlap` is removed and `checkpoint.ckpt_format` set to match Megatron FSDP. Other settings of the Bridge recipe
stay (data, tokenizer, schedule, checkpoints); a comment names them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from trainer.frameworks.megatron_bridge.overrides import NotExpressed, not_expressed, overrides
from trainer.frameworks.megatron_bridge.refusals import refused
from trainer.frameworks.megatron_bridge.versions import Version, version_of
from trainer.launch_scripts.variables import environment
from trainer.launch_scripts.writing import comment
from trainer.recipe import Recipe
from trainer.values import knob_value

HELD = (
    "# comm_overlap of the Bridge recipe is removed and replaced by explicit settings: hand-tuned communication",
    "# buffers (tp_comm_overlap_cfg) and deferred embedding gradients are removed with it.",
    "# checkpoint.ckpt_format matches the use of Megatron FSDP.",
)
_REFUSED, _WRONG = "REFUSED by that release", "NOT TRAINED AS MEANT by that release"


def script(recipe: Recipe, named: str | None, origin: Sequence[str]) -> str:
    """Returns the script: environment, quoted overrides, and a launch line.

    Raises BadInputError for an unknown release.
    """
    release = version_of(named)
    per_node = recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node
    lines = [
        "#!/usr/bin/env bash",
        comment(f"{recipe.name}: overrides for Megatron-Bridge {'.'.join(map(str, release))}, by moe-autotune."),
        *(comment(line) for line in origin),
        *_base(recipe),
        *HELD,
        *(_lost(each) for each in not_expressed(recipe, release)),
        *(comment(f"{_WRONG if each.effect else _REFUSED}: {each.message}") for each in refused(recipe, named)),
        "",
        *(f"export {name}={shlex.quote(value)}" for name, value in environment(recipe).items()),
        "",
        *_array(recipe, release),
        "",
        f"./scripts/training/train.sh --nodes {recipe.cluster.nodes} --gpus-per-node {per_node} "
        '--recipe "${RECIPE:?name a Bridge recipe of this model}" --mode pretrain "$@" "${OVERRIDES[@]}"',
    ]
    return "\n".join(lines) + "\n"


def _base(recipe: Recipe) -> Iterator[str]:
    model = recipe.architecture
    kind = "MLA" if model.multi_latent_attention else "GPT"
    yield f"# Lay them over a Bridge recipe of this model: {model.num_layers} layers of {model.hidden_size} ({kind}),"
    yield f"# {model.num_moe_experts or 'no'} experts. Data, tokenizer, schedule and checkpoints are that recipe's."


def _array(recipe: Recipe, version: Version) -> Iterator[str]:
    yield "OVERRIDES=("
    yield from (f"  {shlex.quote(word)}" for word in overrides(recipe, version))
    yield ")"


def _lost(each: NotExpressed) -> str:
    return comment(f"NOT EXPRESSED: {each.what}: {knob_value(each.value)} ({each.why})")
