#!/bin/bash
# bridge with torchrun, arithmetic and override list from a file, retry loop
set -o errexit
export HF_HOME=/cache/hf
NUM_GPUS=$(nvidia-smi -L | wc -l)
OVERRIDES=(
  model.tensor_model_parallel_size=1
  model.expert_model_parallel_size=8
  train.micro_batch_size=1
  train.global_batch_size=$((NUM_GPUS * 64))
  'dataset.blend=[["/data/a"],null]'
)
for attempt in 1 2 3; do
  torchrun --nproc_per_node=$NUM_GPUS scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config "${OVERRIDES[@]}" && break
  sleep 30
done
