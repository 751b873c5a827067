#!/bin/bash
# OLMoE style: functions that print their arguments
die() { echo "$*" >&2; exit 1; }
model_args() {
  local size=$1
  case $size in
    1b) echo "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024" ;;
    7b) echo "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-experts 8 --moe-router-topk 2" ;;
    *) die "unknown size $size" ;;
  esac
}
read -r -d '' COMMON <<'EOF' || true
--seq-length 2048 --max-position-embeddings 2048
--swiglu --bf16
--normalization RMSNorm
--position-embedding-type rope
EOF
printf -v BATCH -- '--micro-batch-size %d --global-batch-size %d' 4 512
NOW=$(date +%Y%m%d-%H%M%S)
RUN_NAME="olmoe-${NOW}"
LOGS=logs/${RUN_NAME}; mkdir -p "$LOGS"
SIZE=${SIZE:-1b}
NODES=${SLURM_NNODES:-1}
trap 'kill $(jobs -p)' EXIT
until timeout --signal=INT 86400 uv run --no-sync torchrun --nnodes "$NODES" --nproc-per-node gpu --rdzv-id "$RUN_NAME" \
    --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:-localhost}:29400" --max-restarts 3 --log-dir "$LOGS" --tee 3 \
    pretrain_gpt.py $(model_args $SIZE) $COMMON $BATCH \
    --expert-model-parallel-size 8 --tokenizer-type NullTokenizer --vocab-size 50304 --mock-data --train-iters 100 \
    --tensorboard-dir "$LOGS/tb" --wandb-project olmoe --wandb-exp-name "$RUN_NAME" \
    > >(tee "$LOGS/out.log") 2> >(tee "$LOGS/err.log" >&2)
do
  echo "restarting"; sleep 10
done
