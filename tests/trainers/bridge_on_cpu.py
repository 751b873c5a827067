"""A Megatron-Bridge training script as a user has one, on CPU ranks: a recipe, overrides of the command line, pretrain.

`python bridge_on_cpu.py model.num_layers=4 train.exit_interval=5 …`. What only a GPU has is replaced by a fake;
Bridge's files are not touched. Needs this project on PYTHONPATH.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


class Properties:
    major, minor, total_memory, multi_processor_count, name = 10, 0, 80 * 2**30, 132, "cpu"


def stand_in_for_gpus() -> None:
    for name, value in (
        ("is_available", lambda: True),
        ("device_count", lambda: 8),
        ("get_device_capability", lambda *_: (10, 0)),
        ("get_device_properties", lambda *_: Properties()),
        ("get_device_name", lambda *_: "cpu"),
    ):
        setattr(torch.cuda, name, value)


def main(overrides: list[str]) -> None:
    stand_in_for_gpus()
    # loaded before the empty names are there: these look whether Transformer Engine is installed
    import megatron.core.datasets.utils as datasets
    import megatron.core.distributed
    import megatron.core.extensions.transformer_engine
    import megatron.core.models.gpt.gpt_layer_specs as layer_specs
    import megatron.core.models.gpt.gpt_model
    import megatron.core.optimizer
    import megatron.core.transformer.moe.experts  # noqa: F401

    datasets.compile_helpers = lambda: None
    import empty_packages  # pyrefly: ignore[missing-import]  # in the folder of this script

    empty_packages.install()
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.training import config as bridge
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    from trainer.engines.megatron.cpu import megatron_on_cpu

    def local_layers(config: Any, *_: Any, **settings: Any) -> Any:
        return layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=settings.get("vp_stage")
        )

    config = process_config_with_overrides(recipe(bridge, GPTModelProvider, local_layers), cli_overrides=overrides)
    with megatron_on_cpu():
        pretrain(config, forward_step)


def recipe(bridge: Any, provider: Any, local_layers: Any) -> Any:
    """Returns the user's own recipe, with the mistakes that the tuner should find."""
    model = provider(
        num_layers=4, hidden_size=128, ffn_hidden_size=256, num_attention_heads=4, seq_length=128,
        num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=128, moe_token_dispatcher_type="alltoall",
        moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.01, expert_model_parallel_size=2,
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1,
        normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, position_embedding_type="rope", vocab_size=512, should_pad_vocab=True,
        share_embeddings_and_output_weights=False, attention_dropout=0.0, hidden_dropout=0.0,
        transformer_layer_spec=local_layers, use_cpu_initialization=True, moe_grouped_gemm=False,
        gradient_accumulation_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, apply_rope_fusion=False, persist_layer_norm=False, cross_entropy_loss_fusion=False,
    )  # fmt: skip
    return bridge.ConfigContainer(
        model=model,
        train=bridge.TrainingConfig(train_iters=100, global_batch_size=16, micro_batch_size=1, eval_iters=0),
        optimizer=bridge.OptimizerConfig(optimizer="adam", lr=3e-4, min_lr=3e-5, clip_grad=1.0),
        scheduler=bridge.SchedulerConfig(
            lr_decay_style="constant",
            lr_warmup_iters=0,
            lr_decay_iters=100,
            start_weight_decay=0.01,
            end_weight_decay=0.01,
            weight_decay_incr_style="constant",
        ),
        ddp=bridge.DistributedDataParallelConfig(check_for_nan_in_grad=True),
        dataset=bridge.GPTDatasetConfig(
            random_seed=1234,
            reset_attention_mask=False,
            reset_position_ids=False,
            eod_mask_loss=False,
            seq_length=128,
            num_dataset_builder_threads=1,
            blend=None,
            split="9999,8,2",
            data_sharding=True,
            dataloader_type="single",
            num_workers=0,
        ),
        logger=bridge.LoggerConfig(log_interval=10),
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=512),
        checkpoint=bridge.CheckpointConfig(save=None, load=None, ckpt_format="torch_dist"),
        dist=bridge.DistributedInitConfig(distributed_backend="gloo"),
        rng=bridge.RNGConfig(seed=1234),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
