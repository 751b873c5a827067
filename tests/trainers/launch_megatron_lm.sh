#!/usr/bin/env bash
# A launch script as people have them: variables, arrays, one torchrun line.
#SBATCH --job-name=moe-mine
set -euo pipefail

NNODES=${SLURM_NNODES:-1}
GPUS_PER_NODE=2
HERE=$(dirname "$0")
export TORCHDYNAMO_DISABLE=1    # the ranks are CPUs

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --num-layers 4 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 4
    --seq-length 128 --max-position-embeddings 128
    --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0
)
MOE_ARGS=(
    --num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 512
    --moe-token-dispatcher-type allgather --moe-aux-loss-coeff 1e-2
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 16 --train-iters 1000
    --lr 3e-4 --lr-decay-style constant --clip-grad 1.0 --weight-decay 0.1
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
# what a CPU cannot do
MACHINE_ARGS="--transformer-impl local --distributed-backend gloo --use-cpu-initialization --no-persist-layer-norm \
 --no-gradient-accumulation-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-masked-softmax-fusion --no-rope-fusion"
DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer --vocab-size 512 --split 949,50,1)
LOG_ARGS=(
    --log-interval 10 --save-interval 500 --eval-interval 1000 --eval-iters 10
    --save "checkpoints/mine"
)

torchrun "${DISTRIBUTED_ARGS[@]}" "$HERE/pretrain_gpt_on_cpu.py" "$MEGATRON_LM" \
    "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${TRAINING_ARGS[@]}" $MACHINE_ARGS "${DATA_ARGS[@]}" "${LOG_ARGS[@]}" "$@"
