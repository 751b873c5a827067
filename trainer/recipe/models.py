"""Model presets: one row of `models.csv` each, with its sources, as an `Architecture`.

Sizes that most models have are columns; others are in `more_fields`, as JSON in Megatron-Core's names.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from trainer.errors import refused
from trainer.recipe.architecture import HYBRID_LETTERS, Architecture
from trainer.recipe.tables import read_table

_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d+))?")

# Megatron-Core's field -> the table's column, where both hold one positive whole number (0 means absent)
_INTEGERS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "vocab_size": "vocab",
    "ffn_hidden_size": "ffn_dense",
    "num_query_groups": "kv_groups",
    "kv_channels": "head_dim",
    "num_moe_experts": "experts",
    "moe_router_topk": "topk",
    "moe_ffn_hidden_size": "moe_ffn",
    "moe_shared_expert_intermediate_size": "shared_expert_ffn",
    "mtp_num_layers": "mtp_layers",
}
_MLA_INTEGERS = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}


NONE = "none"  # cell of a model without the feature; an empty cell is an unknown value
# Cells that every model has
NEEDED = (
    *("layers", "moe_layer_pattern", "hidden", "heads", "attn", "vocab", "experts", "topk", "moe_ffn"),
    *("shared_expert_ffn", "mtp_layers", "ffn_dense", "kv_groups", "head_dim", "qk_layernorm", "gated_mlp"),
    *("num_groups", "more_fields"),
)


def parse_layer_freq(pattern: str) -> int | tuple[int, ...]:
    """Parses Megatron's `moe_layer_freq` text: "[0]*3+[1]*58" → one flag per layer; "all" → 1.

    Raises ValueError for anything else: Megatron evaluates the text as Python, here only lists of 0 and 1, repetition
    and addition are read.
    """
    if pattern == "all":
        return 1
    flags: list[int] = []
    for term in pattern.replace(" ", "").split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"{pattern!r} is not a layer pattern like [0]*3+[1]*58")
        flags += [int(flag) for flag in match[1].split(",")] * int(match[2] or 1)
    return tuple(flags)


def _hybrid(pattern: str) -> dict[str, Any]:
    """Returns the fields of a pattern that mixes attention with other layers; {} if it does not."""
    letters = HYBRID_LETTERS.match(pattern)
    if letters and pattern[0] == "M":
        return {"hybrid": pattern, "moe_layer_freq": tuple(int(letter == "E") for letter in letters[0])}
    return {"hybrid": pattern, "moe_layer_freq": 1} if pattern.startswith("all ") else {}


def _architecture(row: dict[str, str]) -> Architecture:
    mla, groups = row["attn"] == "MLA", _number(row["num_groups"])
    needed = (*NEEDED, *(_MLA_INTEGERS.values() if mla else ()), *(["topk_groups"] if groups > 1 else []))
    if lacking := [column for column in needed if not row[column]]:
        hint = f"write it, {NONE} where the model has no such thing, with its source"
        raise refused(f"models.csv {row['model']}", f"no figure in {', '.join(lacking)}", hint)
    columns = _INTEGERS | (_MLA_INTEGERS if mla else {})
    fields: dict[str, Any] = {name: _number(row[column]) for name, column in columns.items()}
    fields = {name: value for name, value in fields.items() if value > 0}
    if groups > 1:  # one group is no grouping
        fields |= {"moe_router_num_groups": groups, "moe_router_group_topk": _number(row["topk_groups"])}
    pattern = row["moe_layer_pattern"]
    hybrid = _hybrid(pattern)
    if row["score_fn"]:
        fields["moe_router_score_function"] = row["score_fn"]
    return Architecture(
        **fields,
        **(hybrid or {"moe_layer_freq": parse_layer_freq(pattern)}),
        multi_latent_attention=mla,
        gated_linear_unit=not row["gated_mlp"].startswith("no"),
        qk_layernorm=row["qk_layernorm"] == "yes",
        **json.loads(row["more_fields"] or "{}"),
    )


def _number(cell: str) -> int:
    """Returns a whole number; 0 if the cell is empty or says that there is none."""
    return 0 if cell in ("", NONE) else int(cell)


@cache
def presets() -> dict[str, Architecture]:
    """Returns every row by its name in recipes: the model's name in lower case."""
    return {row["model"].lower(): _architecture(row) for row in read_table("models.csv")}
