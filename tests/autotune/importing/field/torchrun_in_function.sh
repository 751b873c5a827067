#!/usr/bin/env bash
# torchrun in a function, arrays, local variables, default values
set -euo pipefail
: "${NNODES:=4}" "${GPUS_PER_NODE:=8}"
: "${NODE_RANK:=0}"
MASTER_ADDR=${MASTER_ADDR:-$(hostname -I | awk '{print $1}')}
MASTER_PORT=${MASTER_PORT:-6000}

launch() {
  local tp=$1 pp=$2; shift 2
  local -a DIST=(--nnodes "$NNODES" --nproc_per_node "$GPUS_PER_NODE" --node_rank "$NODE_RANK"
                 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT")
  torchrun "${DIST[@]}" pretrain_gpt.py \
    --tensor-model-parallel-size "$tp" \
    --pipeline-model-parallel-size "$pp" \
    "$@"
}

MODEL=(
  --num-layers 24          # layers
  --hidden-size 2048       # hidden
  --num-attention-heads 16
  --num-query-groups 4 --group-query-attention
  --ffn-hidden-size 5632
  # MoE part
  --num-experts 60
  --moe-router-topk 4
  --moe-ffn-hidden-size 1408
  --moe-shared-expert-intermediate-size 5632
  --moe-grouped-gemm
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
  --untie-embeddings-and-output-weights
)
TRAIN=(--micro-batch-size 2 --global-batch-size 1024 --seq-length 4096 --max-position-embeddings 4096 --bf16
       --train-samples 1_000_000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine)
DATA=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen1.5-MoE-A2.7B --data-path 0.7 /d/a_text_document 0.3 /d/b_text_document
      --split 99,1,0 --vocab-size 151936)
ARGS=("${MODEL[@]}" "${TRAIN[@]}" "${DATA[@]}")
[[ -n ${EXTRA:-} ]] && ARGS+=($EXTRA)
launch 1 1 --expert-model-parallel-size 4 --use-distributed-optimizer --moe-token-dispatcher-type alltoall "${ARGS[@]}" 2>&1 | tee train.log
