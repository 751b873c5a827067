#!/bin/bash
# docker run around
IMG=nvcr.io/nvidia/pytorch:25.06-py3
docker run --rm --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 --network host \
  -v $PWD:/workspace -w /workspace -e WANDB_API_KEY -e NCCL_DEBUG=INFO -e CUDA_DEVICE_MAX_CONNECTIONS=1 $IMG \
  bash -c "pip install -q -e . && torchrun --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
    --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --micro-batch-size 4 --global-batch-size 256 \
    --bf16 --vocab-size 32000 --mock-data --tokenizer-type NullTokenizer --train-iters 100 | tee /workspace/log"
