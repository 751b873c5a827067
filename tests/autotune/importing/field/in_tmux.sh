#!/bin/bash
# a terminal that outlives the login
tmux new-session -d -s moe "cd /opt/megatron && torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --num-experts 8 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 1000 --lr 1e-4 --train-iters 10 2>&1 | tee log.txt"
