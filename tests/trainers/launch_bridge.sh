#!/usr/bin/env bash
# A launch script of a Megatron-Bridge training script: torchrun, and overrides of its recipe.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TORCHDYNAMO_DISABLE=1    # the ranks are CPUs

MODEL=(model.num_layers=4 model.hidden_size=128 model.num_attention_heads=4 model.ffn_hidden_size=256
    model.vocab_size=512 model.num_moe_experts=8 model.moe_router_topk=2 model.moe_ffn_hidden_size=128)
LAYOUT=(model.expert_model_parallel_size=2 model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=1)
MEMORY=(model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1)

torchrun --nproc-per-node 2 "$HERE/bridge_on_cpu.py" "${MODEL[@]}" "${LAYOUT[@]}" "${MEMORY[@]}" \
    train.global_batch_size=16 train.micro_batch_size=1 dataset.seq_length=128 mixed_precision=null \
    checkpoint.save=checkpoints/mine "$@"
