#!/bin/bash
# a hand-made sweep
export CUDA_DEVICE_MAX_CONNECTIONS=1
BASE="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --num-experts 16 --moe-router-topk 2 --bf16 --vocab-size 32000 --mock-data --tokenizer-type NullTokenizer --train-iters 20 --global-batch-size 128"
for tp in 1 2 4; do
  for ep in 2 8; do
    for mbs in 1 2; do
      torchrun --standalone --nproc_per_node 8 pretrain_gpt.py $BASE --tensor-model-parallel-size $tp \
        --expert-model-parallel-size $ep --micro-batch-size $mbs > log_tp${tp}_ep${ep}_mbs${mbs}.txt 2>&1 || echo failed
    done
  done
done
