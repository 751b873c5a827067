#!/usr/bin/env bash
# Qwen3-style pretraining on our DGX cluster. usage: MODEL_SIZE=30b ./env_set_a.sh
set -eo pipefail
HERE="$(cd "$(dirname "$0")" && pwd)"
set -a
source "${HERE}/cluster_env.sh"
set +a

MODEL_SIZE=${MODEL_SIZE:-30b}
PROFILE=${PROFILE:-0}
DRY=${DRY:-}

case "${MODEL_SIZE,,}" in
  tiny|0.6b)
    MODEL_ARGS=(--num-layers 4 --hidden-size 512 --num-attention-heads 8 --num-experts 8) ;;
  30b*)
    MODEL_ARGS=(
      --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144
      --num-attention-heads 32 --group-query-attention --num-query-groups 4 --kv-channels 128
      --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8
    )
    EP_SIZE=8
    ;;
  *) echo "no such model: $MODEL_SIZE" >&2; exit 1 ;;
esac

WORLD_SIZE=$((NNODES * GPUS_PER_NODE))
DP=$((WORLD_SIZE / (TP_SIZE * PP_SIZE)))
GBS=$(( DP * MBS * ${GRAD_ACC:-16} ))

MOE_ARGS="--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3 --moe-token-dispatcher-type ${DISPATCHER:-alltoall}
          --moe-grouped-gemm --moe-permute-fusion"
[[ "$DISPATCHER" == "flex" ]] && MOE_ARGS="$MOE_ARGS --moe-enable-deepep"

RECOMPUTE_ARGS=""
if [[ ${RECOMPUTE:-selective} == full ]]; then
  RECOMPUTE_ARGS="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
elif [[ ${RECOMPUTE:-selective} == selective ]]; then
  RECOMPUTE_ARGS="--recompute-granularity selective --recompute-modules core_attn moe_act"
fi

WRAP=()
(( PROFILE )) && WRAP=(nsys profile -s none -t nvtx,cuda -o "$OUT/prof_%q{RANK}" --capture-range=cudaProfilerApi)

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --node_rank ${NODE_RANK:-0}
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port ${MASTER_PORT:-6000}
)
# shellcheck disable=SC2086
${DRY:+echo} "${WRAP[@]}" numactl --cpunodebind=0 --membind=0 torchrun "${DISTRIBUTED_ARGS[@]}" \
  "$MEGATRON_PATH/pretrain_gpt.py" \
    "${MODEL_ARGS[@]}" $MOE_ARGS $RECOMPUTE_ARGS \
    --use-mcore-models --transformer-impl transformer_engine \
    --seq-length ${SEQ_LEN:-4096} --max-position-embeddings ${MAX_POS:-40960} \
    --position-embedding-type rope --rotary-base 1000000 --qk-layernorm --swiglu --disable-bias-linear \
    --normalization RMSNorm --norm-epsilon 1e-6 --untie-embeddings-and-output-weights \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --micro-batch-size $MBS --global-batch-size $GBS --train-samples $((GBS * 1000)) \
    --lr 1.2e-4 --min-lr 1.2e-5 --lr-decay-style cosine --bf16 \
    --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE --expert-model-parallel-size $EP_SIZE \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-30B-A3B \
    --data-path $DATA_PATH --split 99,1,0 \
    --save "$OUT/ckpt" --load "$OUT/ckpt" --save-interval 500 \
    --vocab-size 151936 "$@" 2>&1 | tee "$OUT/train.log"
