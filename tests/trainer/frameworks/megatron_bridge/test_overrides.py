"""Overrides of Megatron-Bridge: what is written, where, and in which release's names."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.errors import BadInputError
from trainer.frameworks.megatron_bridge.hydra import literal, named
from trainer.frameworks.megatron_bridge.overrides import OF_LATENT_ATTENTION, not_expressed, overrides, written
from trainer.frameworks.megatron_bridge.precision import FIELDS
from trainer.frameworks.megatron_bridge.versions import known_to, version_of
from trainer.launch_scripts.variables import environment
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

OLD, NEW = (0, 3, 1), (0, 6, 2)


def recipe(model: str = "qwen3-30b-a3b", **knobs: Any) -> Recipe:
    document = {"name": "r", "model": model, "cluster": {"gpu": "h100", "nodes": 2}}
    return Recipe.model_validate(document).replace(knobs)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1.5, "1.5"), ("a2a", "a2a"), ("null", "'null'"), ("1e3", "'1e3'"), ("", "''"),
     ("Et*3|(tt|)*29m|L", "'Et*3|(tt|)*29m|L'"), ("it's", r"'it\'s'"), (["attn", "mlp"], "[attn,mlp]"),
     ({"a": None, "b": [1]}, "{a:null,b:[1]}"), (named("torch.float32"), "{_target_:torch.float32,_call_:false}")],
)  # fmt: skip
def test_a_value_is_written_in_hydras_grammar(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize("version", [OLD, NEW])
def test_no_path_is_written_twice_and_every_knob_with_a_path_is_said_or_named_as_unsaid(version: Any) -> None:
    given = recipe()
    lines = written(given, version)
    paths = [each.path for each in lines if each.path not in ("comm_overlap", "mixed_precision") and each.form != "~"]
    assert len(paths) == len(set(paths))
    said = {each.what for each in lines} | set(
        next(each.value for each in lines if each.form == "++" and each.path == "mixed_precision")
    )
    said |= {each.what for each in not_expressed(given, version)}
    for knob in KNOBS.values():
        unknown = knob.name in FIELDS and not known_to(knob, version)
        if knob.megatron_bridge and knob.acts != "environment" and knob.name not in OF_LATENT_ATTENTION and not unknown:
            assert knob.name in said, knob.name
    latent = given.model_copy(update={"model": "deepseek-v3"})
    assert set(OF_LATENT_ATTENTION) <= {each.what for each in written(latent, version)}


def test_overrides_that_bridge_applies_last_are_removed_or_written_whole() -> None:
    words = overrides(recipe(grad_reduce_in_fp32=False, overlap_grad_reduce=True, bucket_size=7))
    assert words.index("comm_overlap=null") < words.index("ddp.overlap_grad_reduce=true")
    assert "ddp.bucket_size=7" in words
    assert not any(word.startswith("comm_overlap.") for word in words)
    at = words.index("mixed_precision=null")
    assert words[at + 1].startswith("++mixed_precision={_target_:megatron.bridge.training.mixed_precision.")
    assert "grad_reduce_in_fp32:false" in words[at + 1]
    assert not any(word.startswith("ddp.grad_reduce_in_fp32") for word in words)


def test_knobs_that_cannot_act_are_written_at_rest_so_that_the_bridge_recipes_value_does_not_stay() -> None:
    words = overrides(recipe(use_precision_aware_optimizer=False, main_grads_dtype="bfloat16"))
    assert "optimizer.main_grads_dtype=torch.float32" in words
    assert "model.delay_wgrad_compute=false" in words


def test_graphs_are_spelled_as_the_release_names_them() -> None:
    graphs = recipe(cuda_graph_impl="transformer_engine", cuda_graph_scope=("attn",), use_te_rng_tracker=True)
    old, new = overrides(graphs, OLD), overrides(graphs, NEW)
    assert "model.cuda_graph_scope=[attn]" in old
    assert not any("cuda_graph_modules" in word for word in old)
    assert "model.cuda_graph_modules=[attn]" in new
    assert "model.cuda_graph_scope=null" in new
    assert "rng.te_rng_tracker=true" in old


def test_a_graph_of_the_iteration_switches_off_what_it_cannot_capture() -> None:
    whole = recipe(cuda_graph_impl="full_iteration")
    assert "model.cuda_graph_impl=full_iteration" in overrides(whole, NEW)
    old = overrides(whole, OLD)
    assert {"model.cuda_graph_impl=local", "model.cuda_graph_scope=[full_iteration]"} <= set(old)
    assert "rerun_state_machine.check_for_nan_in_loss=false" in old


def test_one_count_of_sms_is_written_where_two_are_refused() -> None:
    flex = recipe(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep", moe_hybridep_num_sms=24)
    new = overrides(flex, NEW)
    assert "model.moe_hybridep_num_sms=24" in new
    assert "model.moe_deepep_num_sms=null" in new
    assert "model.moe_deepep_num_sms=20" in overrides(flex, OLD)


def test_a_layout_says_its_virtual_stages_and_the_overlap_its_opposite() -> None:
    words = overrides(recipe(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et*12|(t*12|)*3L"))
    assert "model.virtual_pipeline_model_parallel_size=2" in words
    assert "model.batch_p2p_comm=true" in words


def test_a_default_of_the_model_is_written_too_for_the_bridge_recipe_may_say_another() -> None:
    words = overrides(recipe("deepseek-v3"))
    assert "model.multi_latent_attention=true" in words
    assert any(word.lstrip("+").startswith("model.mtp_num_layers=") for word in words)
    assert "++model.attention_output_gate=false" in words
    assert not any("q_lora_rank" in word for word in overrides(recipe()))


def test_a_backend_of_attention_is_the_member_of_its_enum() -> None:
    target = "{_target_:megatron.core.transformer.enums.AttnBackend.flash,_call_:false}"
    assert f"model.attention_backend={target}" in overrides(recipe(attention_backend="flash"))


def test_a_knob_of_a_later_release_is_named_as_lost_before_it() -> None:
    late = recipe(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep", moe_paged_stash=True)
    assert ("moe_paged_stash", "Bridge has it from 0.5") in {(each.what, each.why) for each in not_expressed(late, OLD)}
    assert "moe_paged_stash" not in {each.what for each in not_expressed(late, NEW)}
    assert "model.moe_paged_stash=true" in overrides(late, NEW)


def test_variables_are_set_in_the_shell_and_taken_out_of_the_bridge_recipe_where_it_has_any() -> None:
    given = recipe(CUDA_DEVICE_MAX_CONNECTIONS=1)
    assert environment(given)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert not any("env_vars" in word for word in overrides(given, OLD))
    new = overrides(given, NEW)
    assert "++env_vars.CUDA_DEVICE_MAX_CONNECTIONS='1'" in new
    assert new.index("++env_vars.NCCL_NVLS_ENABLE='0'") + 1 == new.index("~env_vars.NCCL_NVLS_ENABLE")


def test_an_unknown_release_is_refused() -> None:
    assert version_of("0.3.1") == (0, 3, 1)
    assert version_of(None) == version_of("head") == NEW
    with pytest.raises(BadInputError, match="not a known release of Megatron-Bridge"):
        version_of("0.1")


def test_what_a_bridge_recipe_says_of_graphs_by_their_old_names_is_switched_off() -> None:
    assert "++model.external_cuda_graph=false" in overrides(recipe())


def test_mxfp8_under_fsdp_reuses_the_gradient_buffer_in_the_old_release_only() -> None:
    given = recipe(use_megatron_fsdp=True, precision="mxfp8", fp8_param_gather=True)
    assert "reuse_grad_buf_for_mxfp8_param_ag:true" in "".join(overrides(given, OLD))
    assert "reuse_grad_buf_for_mxfp8_param_ag:false" in "".join(overrides(given, NEW))
