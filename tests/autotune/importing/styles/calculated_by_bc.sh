#!/bin/bash
GBS=$(echo "scale=0; 3*64/2" | bc); LR=$(awk 'BEGIN{printf "%.2e", 3e-4/3}')
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --num-experts 8 --moe-router-topk 2 --seq-length 128 --max-position-embeddings 128 --bf16 --vocab-size 1000  --train-iters 10 --tokenizer-type NullTokenizer --mock-data --micro-batch-size 1 --global-batch-size $GBS --lr $LR
