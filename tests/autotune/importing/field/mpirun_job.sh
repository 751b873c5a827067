#!/bin/bash
# mpirun from a kubernetes MPIJob
DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$DIR/env_of_mpirun.sh"
GPUS=8
WORLD=$(( NUM_NODES * GPUS ))
GBS=$(( 4 * WORLD ))
mpirun --allow-run-as-root -np $WORLD --hostfile $HOSTFILE -npernode $GPUS \
  -bind-to none -map-by slot \
  -x NCCL_DEBUG -x PYTHONPATH -x CUDA_DEVICE_MAX_CONNECTIONS -x NCCL_IB_HCA=mlx5 \
  -mca pml ob1 -mca btl ^openib \
  python $MEGATRON_DIR/pretrain_gpt.py \
    --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024 --swiglu --disable-bias-linear --normalization RMSNorm \
    --position-embedding-type rope --qk-layernorm \
    --expert-model-parallel-size 8 --micro-batch-size 2 --global-batch-size $GBS --bf16 \
    --tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt --data-path d --vocab-size 50304 \
    --train-iters 1000 --lr 4e-4 --distributed-backend nccl
