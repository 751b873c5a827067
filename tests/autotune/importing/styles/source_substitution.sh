#!/bin/bash
set -a
. <(cat <<'X'
TP=2
PP=1
EP=8
NVTE_FLASH_ATTN=1
NCCL_NVLS_ENABLE=0
X
)
set +a
FP8_ARGS=()
[ "${USE_FP8:-1}" -eq 1 ] && FP8_ARGS=(--fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather)
IFS=, read -ra SPLIT <<< "99,1,0"
WANDB="--wandb-project moe --wandb-exp-name exp_${SLURM_JOB_ID:-local}_tp${TP}ep${EP}"
numactl --interleave=all nsys profile -s none -t nvtx,cuda -o /tmp/prof_%p --capture-range=cudaProfilerApi \
 torchrun --nproc_per_node 8 --master_port $((29500 + RANDOM % 100)) pretrain_gpt.py --num-layers 28 --hidden-size 2048 --num-attention-heads 16 \
 --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816 --ffn-hidden-size 10944 \
 --moe-layer-freq "([0]+[1]*27)" --seq-length 4096 --max-position-embeddings 4096 --bf16 "${FP8_ARGS[@]}" \
 --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --expert-model-parallel-size $EP --sequence-parallel --use-distributed-optimizer \
 --micro-batch-size 1 --global-batch-size 128 --split "$(IFS=,; echo "${SPLIT[*]}")" --vocab-size 102400 --tokenizer-type NullTokenizer \
 --profile --profile-step-start 10 --profile-step-end 12 --profile-ranks 0 1 --swiglu --disable-bias-linear --normalization RMSNorm \
 --lr 1e-4 --train-iters 20 --mock-data $WANDB
