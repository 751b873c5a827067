"""Checks that every setting of a recipe reaches Megatron's configurations."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.megatron


def tiny(**knobs: Any) -> Any:
    from trainer.recipe import Recipe

    model = {
        "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128, "num_moe_experts": 4,
        "moe_ffn_hidden_size": 64,
    }  # fmt: skip
    recipe = Recipe.model_validate(
        {"name": "tiny", "model": model, "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 2}}
    )
    return recipe.replace(knobs)


def configs_of(**knobs: Any) -> Any:
    from trainer.engines.megatron.config import build_configs

    return build_configs(tiny(**knobs), transformer_engine=False)


def acting_of(**knobs: Any) -> dict[str, Any]:
    from trainer.engines.megatron.train import acting_knobs

    return acting_knobs(tiny(**knobs), configs_of(**knobs))


def test_the_balancing_that_was_asked_for_is_set() -> None:
    assert configs_of(moe_router_load_balancing_type="seq_aux_loss").transformer.moe_router_load_balancing_type == (
        "seq_aux_loss"
    )
    assert configs_of().transformer.moe_router_load_balancing_type == "aux_loss"


def test_a_knob_the_installed_megatron_has_no_field_for_is_named() -> None:
    import dataclasses

    from megatron.core.transformer.transformer_config import TransformerConfig

    assert configs_of().unknown == ()
    if "moe_paged_stash" in {field.name for field in dataclasses.fields(TransformerConfig)}:
        pytest.skip("this Megatron-Core has every knob of the table")
    assert configs_of(moe_paged_stash=True).unknown == ("moe_paged_stash",)


def test_settings_that_act_are_described_in_the_words_of_the_recipe() -> None:
    from trainer.engines.megatron.config import MegatronConfigs
    from trainer.engines.megatron.train import acting_knobs

    scope = Enum("scope", ["attn", "moe_router"])
    built = MegatronConfigs(  # as Megatron leaves them where Transformer Engine is installed
        transformer=SimpleNamespace(cuda_graph_impl="local", cuda_graph_scope=[scope["attn"], scope["moe_router"]]),
        ddp=SimpleNamespace(),
        optimizer=SimpleNamespace(exp_avg_dtype=torch.bfloat16),
        unknown=(),
    )
    recipe = tiny(cuda_graph_impl="local", cuda_graph_scope=("attn", "moe_router"), exp_avg_dtype="bfloat16")
    assert acting_knobs(recipe, built) == {
        "cuda_graph_impl": "local", "cuda_graph_scope": "attn,moe_router", "exp_avg_dtype": "bfloat16",
    }  # fmt: skip


def test_null_asks_for_nothing_that_could_be_missed() -> None:
    assert "recompute_modules" not in acting_of(recompute_granularity=None, recompute_modules=None)


class _Group:
    """A process group of two ranks."""

    def size(self) -> int:
        return 2


def test_replicas_are_compared_in_slices_and_any_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.engines.megatron import replicas

    monkeypatch.setattr(replicas, "_SLICE", 3)
    mine = torch.arange(8.0).reshape(2, 4)

    def between(*others: Any) -> list[float]:
        theirs = torch.stack([replicas._fingerprint(torch, other) for other in others])

        def all_reduce(tensor: Any, op: Any, group: Any) -> None:
            pick = torch.minimum if op == torch.distributed.ReduceOp.MIN else torch.maximum
            tensor.copy_(pick(tensor, theirs))

        monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
        return replicas._spreads(torch, [mine] * len(others), _Group())

    swapped = mine.clone()
    swapped[0, 0], swapped[0, 1] = mine[0, 1], mine[0, 0]
    same, exchanged, moved = between(mine.clone(), swapped, mine + 1e-6)
    assert same == 0.0
    assert exchanged > 0.0
    assert moved > 0.0


def built_of(**fields: Any) -> Any:
    from trainer.engines.megatron.config import build_configs
    from trainer.recipe import Recipe

    given = tiny()
    model = given.architecture.model_copy(update=fields)
    return build_configs(
        Recipe.model_validate(given.model_dump() | {"model": model.model_dump()}), transformer_engine=False
    ).transformer


def test_the_router_and_the_numbers_of_a_model_are_those_of_the_recipe() -> None:
    fields: dict[str, Any] = {
        "moe_router_score_function": "sigmoid",
        "moe_router_topk_scaling_factor": 2.5,
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_pre_softmax": True,
        "moe_aux_loss_coeff": 1e-4,
        "init_method_std": 0.006,
        "layernorm_epsilon": 1e-6,
        "rotary_interleaved": True,
        "no_rope_freq": 2,
    }
    built = built_of(**fields)
    assert {name: getattr(built, name) for name in fields} == fields | {"no_rope_freq": [0, 1]}


def test_latent_attention_is_rotated_as_the_recipe_says() -> None:
    latent = {"multi_latent_attention": True, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_head_dim": 16,
              "qk_pos_emb_head_dim": 8, "v_head_dim": 16}  # fmt: skip
    yarn = {"rope_type": "yarn", "rotary_base": 50000.0, "rotary_scaling_factor": 32.0, "beta_fast": 1.0, "mscale": 0.7}
    built = built_of(**latent, **yarn)
    assert {name: getattr(built, name) for name in yarn} == yarn
    assert built_of(**latent).rope_type == "rope"


def test_yarn_without_latent_attention_is_left_where_the_model_looks_for_it() -> None:
    built = built_of(
        position_embedding_type="yarn", rotary_scaling_factor=32.0, yarn_correction_range_round_to_int=False
    )
    assert built.yarn_rotary_scaling_factor == 32.0
    assert built.yarn_beta_fast == 32.0
    assert built.yarn_correction_range_round_to_int is False


@pytest.mark.parametrize(
    ("gated", "written", "function"),
    [
        (True, None, "silu"),
        (False, None, "gelu"),
        (True, "quick_gelu", "quick_gelu"),
        (False, "squared_relu", "squared_relu"),
    ],
)
def test_the_activation_is_the_written_one_or_the_launchers(gated: bool, written: str | None, function: str) -> None:
    built = built_of(gated_linear_unit=gated, activation_func=written)
    assert built.activation_func.__name__ == function
