#!/bin/bash
# entry point of a Kubernetes PyTorchJob: the operator sets PET_*
set -x
: ${PET_NNODES:=4}
export PET_NNODES PET_NPROC_PER_NODE=8 PET_NODE_RANK=${PET_NODE_RANK:-0}
export PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT="${MASTER_ADDR}:${MASTER_PORT}"
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
cd /workspace/Megatron-LM || exit 1
ulimit -l unlimited
exec torchrun pretrain_gpt.py \
  --num-layers=27 --hidden-size=2048 --num-attention-heads=16 --ffn-hidden-size=10944 \
  --multi-latent-attention --kv-lora-rank=512 --qk-head-dim=128 --qk-pos-emb-head-dim=64 --v-head-dim=128 \
  --num-experts=64 --moe-router-topk=6 --moe-ffn-hidden-size=1408 --moe-layer-freq='([0]+[1]*26)' \
  --moe-shared-expert-intermediate-size=2816 --moe-token-dispatcher-type=alltoall --moe-grouped-gemm \
  --seq-length=4096 --max-position-embeddings=4096 --position-embedding-type=rope --no-rope-fusion \
  --swiglu --disable-bias-linear --normalization=RMSNorm --untie-embeddings-and-output-weights \
  --micro-batch-size=1 --global-batch-size=$(( PET_NNODES * PET_NPROC_PER_NODE * 16 )) --bf16 \
  --tensor-model-parallel-size=1 --pipeline-model-parallel-size=1 --expert-model-parallel-size=8 \
  --use-distributed-optimizer --tokenizer-type=NullTokenizer --vocab-size=102400 --mock-data --train-iters=200 \
  --lr=4.2e-4 --log-interval=1
