"""A model's config.json of Hugging Face becomes the fields that its preset has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.init.starter import starter
from tests.rows import for_every_row
from trainer.errors import BadInputError
from trainer.frameworks.megatron_lm.model import acts_in
from trainer.model.parameters import total_parameters
from trainer.recipe import load_recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.hugging_face import keys_unread, model_fields, parts_left_out
from trainer.recipe.models import presets

# Sizes as the published config.json of each model has them; keys that no field is read from are left out.
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-05,
        "router_aux_loss_coef": 0.02,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_nextn_predict_layers": 1,
        "vocab_size": 129280,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": False,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "vocab_size": 201088,
        "rms_norm_eps": 1e-05,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": False,
    },
    "glm-4.5": {
        "model_type": "glm4_moe",
        "num_hidden_layers": 92,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 1,
        "vocab_size": 151552,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
    },
    "llama4-scout-17b-16e": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "num_hidden_layers": 48,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "no_rope_layers": [1, 1, 1, 0] * 12,
            "attention_chunk_size": 8192,
            "use_qk_norm": True,
            "vocab_size": 202048,
            "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
            "tie_word_embeddings": False,
        },
    },
}
# Those of newer families, a line each
PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published_configs.json").read_text())
# What a configuration does not hold, or holds otherwise than the preset's own source
NOT_IN_IT = {
    "kv_channels",
    "init_method_std",
    "moe_aux_loss_coeff",
    "mtp_loss_scaling_factor",
    "moe_router_bias_update_rate",
}


@for_every_row([*CONFIGS, *PUBLISHED])
def test_a_config_is_the_model_that_its_preset_is(name: str) -> None:
    config = (CONFIGS | PUBLISHED)[name]
    read, preset = Architecture.model_validate(model_fields(config, where="x")), presets()[name]
    acting = [field for field in Architecture.model_fields if acts_in(preset, field) and field not in NOT_IN_IT]
    differs = {f: (getattr(read, f), getattr(preset, f)) for f in acting if getattr(read, f) != getattr(preset, f)}
    assert differs == {}


# Keys of published configurations that Megatron-Core has no field for
UNREAD = {"minimax-text-01": ("postnorm",), "phi-3.5-moe": ("lm_head_bias",)}


@for_every_row([*CONFIGS, *PUBLISHED])
def test_what_is_not_read_of_a_config_is_named(name: str) -> None:
    assert keys_unread((CONFIGS | PUBLISHED)[name]) == UNREAD.get(name, ())


def test_a_key_or_a_value_without_a_field_is_named() -> None:
    config = CONFIGS["mixtral-8x7b"] | {"hidden_act": "gelu", "new_gate": 3, "rope_scaling": {"type": "dynamic"}}
    assert keys_unread(config) == ("hidden_act", "new_gate", "rope_scaling: dynamic")


def test_linear_layers_of_ling_are_lightning_attention_but_for_the_last_of_a_group() -> None:
    config = PUBLISHED["ling-mini-2.0"] | {"model_type": "bailing_moe_linear", "layer_group_size": 5}
    kinds = Architecture.model_validate(model_fields(config, where="x")).layer_kinds
    assert [layer for layer, kind in enumerate(kinds) if kind.mixer == "attention"] == [4, 9, 14, 19]
    assert {kind.mixer for kind in kinds} == {"attention", "lightning_attention"}


def test_the_language_model_of_kimi_k2_5_is_that_of_kimi_k2() -> None:
    text = {
        "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 64, "n_routed_experts": 384, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": 1, "topk_group": 1,
        "vocab_size": 163840, "tie_word_embeddings": False,
    }  # fmt: skip
    config = {"model_type": "kimi_k25", "text_config": text, "vision_config": {"patch_size": 14}}
    model = Architecture.model_validate(model_fields(config, where="x"))
    assert total_parameters(model) == total_parameters(presets()["kimi-k2.5"])
    assert parts_left_out(config) == ("vision_config",)


def test_layers_of_nemotron_are_read_in_words_as_in_letters() -> None:
    config = PUBLISHED["nemotron-3-super-120b-a12b"]
    words = {"M": "linear_attention", "E": "moe", "*": "full_attention"}
    spelled = {key: value for key, value in config.items() if "pattern" not in key} | {
        "layers_block_type": [words[letter] for letter in config["hybrid_override_pattern"]],
        "mtp_layers_block_type": ["full_attention", "moe"],
    }
    assert model_fields(spelled, where="x") == model_fields(config, where="x")
    with pytest.raises(BadInputError, match="layers of kind conv have no letter"):
        model_fields(spelled | {"layers_block_type": ["conv"]}, where="x")


@for_every_row(
    [
        ("minimax-m2", {"head_dim": None}, "rotary_dim: 64 cannot be read"),
        ("jamba-v0.1", {"attn_layer_period": 0}, "attn_layer_period: 0 cannot be read"),
        ("nemotron-3-super-120b-a12b", {"hybrid_override_pattern": "MEQ"}, "'MEQ' is no pattern of layers: Q"),
        ("minimax-text-01", {"attn_type_list": [1]}, "not a list of one value for each of the 80 layers"),
        ("glm-5", {"mlp_layer_types": "dense"}, "not a list of one value for each of the 78 layers"),
    ]
)
def test_a_value_that_cannot_be_read_is_named(row: tuple[str, dict[str, Any], str]) -> None:
    name, odd, said = row
    with pytest.raises(BadInputError, match=said):
        model_fields(PUBLISHED[name] | odd, where="x")


def test_init_names_the_field_of_a_value_that_it_cannot_have(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["deepseek-v4-flash"] | {"compress_ratios": [8] * 43}))
    with pytest.raises(BadInputError, match="csa_compress_ratios: input should be 0, 4 or 128"):
        starter(model=str(tmp_path / "config.json"), gpu="h100", gpus=256)


def test_a_mixer_and_experts_in_each_layer_are_two_letters_each() -> None:
    granite = PUBLISHED["granite-3.1-3b-a800m"] | {
        "model_type": "granitemoehybrid", "num_hidden_layers": 3, "layer_types": ["mamba", "mamba", "attention"],
        "mamba_n_heads": 48, "mamba_d_head": "auto", "mamba_d_state": 128, "mamba_n_groups": 1,
        "shared_intermediate_size": 1024, "position_embedding_type": "nope",
    }  # fmt: skip
    model = Architecture.model_validate(model_fields(granite, where="x"))
    assert (model.hybrid, model.num_layers, model.moe_layer_freq) == ("MEME*E", 6, (0, 1) * 3)
    assert (model.mamba_num_heads, model.position_embedding_type) == (48, "none")


def test_experts_are_in_every_layer_of_the_sparse_step_but_those_of_an_mlp_only() -> None:
    config = CONFIGS["qwen3-30b-a3b"] | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    assert model_fields(config, where="x")["moe_layer_freq"] == (0, 1, 0, 0, 0, 1)


def test_theta_is_found_where_transformers_5_has_it() -> None:
    config = {name: value for name, value in CONFIGS["mixtral-8x7b"].items() if name != "rope_theta"}
    said = model_fields(config | {"rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}}, where="x")
    assert said["rotary_base"] == 250000.0


def test_a_recipe_may_name_a_config_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen3-30b-a3b"]))
    (tmp_path / "r.yaml").write_text("model: ./config.json\ncluster: {gpu: h100}\n")
    recipe = load_recipe(str(tmp_path / "r.yaml"))
    assert (recipe.architecture.num_moe_experts, recipe.architecture.rotary_base) == (128, 1000000.0)


def test_init_takes_a_config_and_what_it_writes_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["deepseek-v3"]))
    text = starter(model=str(folder / "config.json"), gpu="h100", gpus=64).text
    (tmp_path / "r.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "r.yaml"))
    assert (recipe.name, recipe.architecture.num_layers) == ("my-model-64xh100", 61)


def test_import_of_a_config_asks_for_the_cluster_and_takes_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt-oss-20b"]))
    assert main(["import", str(tmp_path / "config.json"), "-o", str(tmp_path / "r.yaml")]) == 2
    words = ["--gpu", "h100", "--nodes", "1", "-o", str(tmp_path / "r.yaml")]
    assert main(["import", str(tmp_path / "config.json"), *words]) == 0
    assert load_recipe(str(tmp_path / "r.yaml")).architecture.softmax_type == "learnable"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "qwen3_mo"}, "did you mean qwen3_moe"),
        ({"model_type": "mixtral", "hidden_size": 1}, "it does not say num_layers, num_attention_heads, vocab_size"),
    ],
)
def test_a_config_that_cannot_be_read_says_why(config: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        model_fields(config, where="config.json")


NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
    "head_dim": 256, "num_key_value_heads": 2, "vocab_size": 151936, "intermediate_size": 5632, "num_experts": 512,
    "moe_intermediate_size": 512, "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip


def test_layer_types_say_which_layers_keep_full_attention() -> None:
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 12
    model = Architecture(**model_fields({**NEXT, "layer_types": kinds}, where="x"))
    assert model.linear_attention_freq == 4
    assert round(total_parameters(model) / 1e9, 3) == 79.674
    assert model_fields({**NEXT, "layer_types": kinds[::-1]}, where="x")["linear_attention_freq"] == (0, 1, 1, 1) * 12


def test_a_mixture_without_its_number_of_experts_is_no_dense_model() -> None:
    with pytest.raises(BadInputError, match="it does not say num_experts"):
        model_fields({key: value for key, value in NEXT.items() if key != "num_experts"}, where="x")


def test_parts_other_than_the_language_model_are_named() -> None:
    data = {"model_type": "qwen3_next", "text_config": NEXT, "vision_config": {"depth": 27}, "image_token_id": 3}
    assert parts_left_out(data) == ("vision_config",)
