#!/bin/bash
# started by srun, one per node
export MASTER_ADDR=$1
export MASTER_PORT=${2:-29500}
NODE_RANK=$SLURM_NODEID
source /opt/venvs/mcore/bin/activate
cd /opt/Megatron-LM
ARGS="--num-layers 28 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 11264"
ARGS="$ARGS --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-layer-freq ([0]+[1]*27)"
ARGS+=" --moe-shared-expert-intermediate-size 2816 --moe-router-score-function sigmoid --moe-router-enable-expert-bias"
ARGS+=" --seq-length 4096 --max-position-embeddings 4096 --swiglu --disable-bias-linear --normalization RMSNorm"
ARGS+=" --position-embedding-type rope --untie-embeddings-and-output-weights"
ARGS+=" --micro-batch-size 1 --global-batch-size 512 --bf16 --vocab-size 102400"
ARGS+=" --expert-model-parallel-size 8 --pipeline-model-parallel-size 2"
ARGS+=" --tokenizer-type NullTokenizer --mock-data --train-iters 10"
torchrun --nnodes $SLURM_NNODES --node_rank $NODE_RANK --nproc_per_node 8 \
   --master_addr $MASTER_ADDR --master_port $MASTER_PORT pretrain_gpt.py $ARGS
