#!/bin/bash
mode=small; printf -v G %d 64; A="it's \"quoted\" \$HOME"
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --num-experts 8 --moe-router-topk 2 --seq-length 128 --max-position-embeddings 128 --bf16 --vocab-size 1000 --lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer --mock-data --micro-batch-size 1 --global-batch-size $G --wandb-exp-name "${mode^^}-${A}" --wandb-project $'tab\there'
