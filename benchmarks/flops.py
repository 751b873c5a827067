"""Compares our FLOPs per token with the ratio of published TFLOPS to published tokens/s, by model.

`python -m benchmarks.flops` prints one row per model, task and sequence length, pre-training first. Rows whose tokens/s
came from whole samples/s are left out (they are rounded by up to 1.8 %). Fine-tuning rows are shown, not judged:
their sequences have other lengths, and frozen weights no gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.places import data_file, table_rows
from benchmarks.published_runs import DENSE
from trainer.model.flops import model_flops_per_token
from trainer.recipe.architecture import Architecture
from trainer.recipe.models import presets

PRESETS = {
    "deepseek_v3": "deepseek-v3",
    "qwen3_235b_a22b": "qwen3-235b-a22b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "moonlight-16b-a3b": "moonlight-16b-a3b",
    "gpt_oss_120b": "gpt-oss-120b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "nemotron_3_nano": "nemotron-3-nano-30b-a3b",
}
SPLIT_AT = {"gpt_oss_120b": "26.06"}  # the release from which Megatron-Bridge counts windows and gated experts
# fields that a table counted differently from the model: (model_key, variant or sequence) -> (fields, words)
COUNTED_AS: dict[tuple[str, str | int], tuple[dict[str, Any], str]] = {
    ("gpt_oss_120b", "before"): (
        {"gated_linear_unit": False, "window_size": None},
        "two of the experts' three matrices, full attention in every layer",
    ),
    ("gpt-oss-120b", 4096): ({"vocab_size": 32000}, "a vocabulary of 32,000"),
    ("gpt-oss-20b", 4096): ({"vocab_size": 32000}, "a vocabulary of 32,000"),
}
Group = tuple[str, str, int, str]  # model_key, task, sequence, variant


def models() -> dict[str, Architecture]:
    """Returns architectures by model_key: presets, and the dense models of the same tables."""
    names = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
             "vocab_size")  # fmt: skip
    dense = {key: Architecture.model_validate(dict(zip(names, sizes, strict=True))) for key, sizes in DENSE.items()}
    return dense | {key: presets()[name] for key, name in PRESETS.items()}


def published() -> Mapping[Group, list[float]]:
    groups: dict[Group, list[float]] = defaultdict(list)
    for row in table_rows(data_file("published_runs.csv")):
        exact = row["derived_tflop_per_token"] and row["seq_len"] and not row["tokens_integer_rounded"]
        if exact and row["model_key"] in models():
            groups[_group(row)].append(float(row["derived_tflop_per_token"]))
    return groups


def _group(row: Mapping[str, str]) -> Group:
    key, variant = row["model_key"], "w/o MTP" if "w/o MTP" in row["variant"] else ""
    if key in SPLIT_AT:
        variant = "since" if row["release"] >= SPLIT_AT[key] else "before"
    return key, row["task"].lower(), int(float(row["seq_len"])), variant


def _comparison(model: Architecture, seq_length: int, ratios: list[float]) -> str:
    ours, theirs = model_flops_per_token(model, seq_length) / 1e12, median(ratios)
    return f"{theirs:9.5f} {ours:7.5f}  {100 * (ours / theirs - 1):+6.2f}"


def main() -> None:
    known = models()
    print(f"{'model':18} {'task':22} {'seq':>6} {'variant':8} rows  published    ours   off %  counted as  off %")
    for group, ratios in sorted(published().items(), key=lambda item: (not item[0][1].startswith("pre"), item[0])):
        key, task, seq_length, variant = group
        model = known[key].model_copy(update={"mtp_num_layers": None}) if variant == "w/o MTP" else known[key]
        line = (
            f"{key:18} {task:22} {seq_length:6} {variant:8} {len(ratios):4}  {_comparison(model, seq_length, ratios)}"
        )
        fields, words = COUNTED_AS.get((key, variant), COUNTED_AS.get((key, seq_length), ({}, "")))
        if fields:
            off = _comparison(model.model_copy(update=fields), seq_length, ratios).split()[-1]
            line += f"  {words}: {off}"
        print(line)


if __name__ == "__main__":
    main()
