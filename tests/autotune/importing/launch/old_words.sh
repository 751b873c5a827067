#!/usr/bin/env bash
# Spellings that newer releases replaced, and settings that switch each other.
NPROC=4
run() {
  local extra=$1
  CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=4 python -m torch.distributed.launch --nproc_per_node=$NPROC --nnodes=1 \
    ./pretrain_gpt.py --num-layers=16 --hidden-size=1024 --num-attention-heads=16 --seq-length=2048 \
    --max-position-embeddings=2048 --micro-batch-size=2 --vocab-size=50257 --num-experts=0 \
    --use-rotary-position-embeddings --recompute-activations --num-layers-per-virtual-pipeline-stage=2 \
    --pipeline-model-parallel-size=4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \
    --num-layers=14 --bf16 --grad-reduce-in-bf16 --enable-cuda-graph --squared-relu \
    --lr 3e-4 --train-iters 100 --mock-data --tokenizer-type NullTokenizer --seed -1 $extra "$@"
}
[[ "${DEBUG:-0}" == 1 ]] && set -x
cat <<'END'
torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 1
END
run --no-overlap-p2p-communication
