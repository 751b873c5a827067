"""Checks that an import keeps packed sequences, and that `check` names them with CUDA graphs."""

from __future__ import annotations

from trainer.frameworks import framework_of
from trainer.frameworks.megatron_bridge.read import read_config
from trainer.frameworks.megatron_lm.packing import packing_values
from trainer.frameworks.packing import PACKED_WITH_GRAPHS
from trainer.frameworks.reading import ImportRequest
from trainer.legality import findings_of
from trainer.recipe import Recipe

LM = ("pretrain_gpt.py", "--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "64",
      "--micro-batch-size", "1", "--max-position-embeddings", "64", "--vocab-size", "512")  # fmt: skip
BRIDGE = ("run_recipe.py", "--recipe", "qwen3_30b_a3b_pretrain_config", "train.micro_batch_size=1")
CASES = (
    ("megatron-lm", (*LM, "--sft"), ("--sft",)),
    ("megatron-lm", LM, ()),
    ("megatron-bridge", (*BRIDGE, "dataset.enable_offline_packing=true"), ("dataset.enable_offline_packing",)),
    ("megatron-bridge", (*BRIDGE, "dataset.packed_sequence_specs.packed_sequence_size=-1"), ()),
)


def started(kind: str, command: tuple[str, ...], **knobs: object) -> Recipe:
    document = {
        "name": "r",
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": "h100", "nodes": 2},
        "burst": {"engine": "command"},
        "trainer": {"kind": kind, "command": command},
    }
    return Recipe.model_validate(document).replace({"expert_model_parallel_size": 8, **knobs})


def test_packed_sequences_are_kept_and_said_beside_graphs() -> None:
    for kind, command, packing in CASES:
        plain = started(kind, command)
        framework = framework_of(plain)
        assert framework is not None
        assert framework.reader is not None
        reading = framework.reader.read_command(command, ImportRequest(file="run.sh"), frozenset())
        assert tuple(each.words for each in reading.kept if "packs" in each.why) == packing
        graphed = started(kind, command, cuda_graph_impl="transformer_engine", cuda_graph_scope=("attn",))
        for recipe, expected in ((plain, False), (graphed, bool(packing))):
            assert (PACKED_WITH_GRAPHS in [each.rule for each in findings_of(recipe)]) == expected, (kind, command)


def test_a_log_and_a_configuration_that_pack_say_so() -> None:
    model = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
    dataset = {"seq_length": 64, "packed_sequence_specs": {"packed_sequence_size": 64}}
    found = read_config({"model": model, "dataset": dataset})
    assert [each.words for each in found.kept] == ["dataset.packed_sequence_specs.packed_sequence_size"]
    assert packing_values({"sft": True, "rl_use_sequence_packing": False}) == ("sft",)
